"""Kinds of things and words for some of each kind: who asks for pets is told about by a message with a dog.

The table is everyday English and the talk of software: what people ask for by its kind. Words that are in
every second message, or in many kinds, are no help. Chats that were set aside when it was written gained as
much from it as those that were at hand.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from .terms import term_of

# Words that name a kind, then words for what is of that kind.
_KIND_WORDS = """\
family relative: mother mom mum father dad parent sister brother sibling son daughter child kid baby wife husband
  grandmother grandma grandfather grandpa aunt uncle cousin niece nephew
parent: mother mom mum father dad
child kid: son daughter baby toddler boy girl
partner spouse relationship: wife husband girlfriend boyfriend fiance bride date marry
pet animal: dog puppy pup cat kitten rabbit hamster parrot bird fish turtle horse snake
job work career profession occupation: employer boss manager office salary hire promotion interview company
  colleague engineer teacher nurse doctor lawyer
school study education degree: college university class course exam student teacher professor graduate lecture
  thesis homework
sport: football soccer basketball baseball tennis golf hockey volleyball swim run surf ski snowboard climb skate
  box rugby cricket marathon
exercise fitness workout: gym run jog yoga swim cycle hike lift train stretch pilates
hobby activity pastime interest: paint draw read garden cook bake hike camp fish swim dance sing knit photography
  pottery guitar piano chess
food meal dish eat cuisine: breakfast lunch dinner cook bake recipe pizza pasta soup salad bread cake chicken fish
  rice cheese vegetable fruit sushi curry
dessert sweet: cake cookie pie chocolate candy pastry
drink beverage: coffee tea water juice beer wine milk soda cocktail
health medical illness condition disease: doctor hospital sick pain injury surgery diagnose medicine medication
  symptom fever allergy asthma diabetes therapy clinic
injury hurt: break sprain wound ankle knee twist accident
instrument: guitar piano violin drum flute clarinet cello saxophone
music: song band concert album singer guitar piano jazz rock
art artwork: paint draw sculpture sketch gallery museum
book: novel read author series story chapter
film movie show: watch series cinema actor director scene
game: play video console board chess card player
vehicle transport: car truck bus train bike bicycle motorcycle boat plane van
car: drive vehicle truck engine
travel trip vacation holiday visit: flight hotel airport tour beach fly abroad road
country nation: abroad usa america england france germany italy spain canada mexico japan china india brazil
  australia ireland sweden
state: california texas florida oregon washington nevada colorado arizona michigan minnesota ohio georgia alaska
  hawaii virginia
city town: london paris york chicago boston seattle berlin tokyo rome toronto barcelona
outdoor nature: hike camp park forest mountain lake beach trail river
home house live: apartment flat rent mortgage room kitchen move landlord neighbor
money financial finance cost: price pay budget salary loan dollar euro debt bank invoice rent save tax
buy purchase: shop store order new
gift present: birthday christmas buy give
event celebration: party wedding birthday festival concert conference parade ceremony anniversary
religion religious faith: church god pray bible mosque temple
feeling feel emotion mood: happy sad angry excite anxious proud afraid nervous grateful stress lonely glad upset
fear afraid: scare anxious nervous worry
volunteer charity: donate shelter fundraiser community nonprofit
plant garden: flower tree vegetable seed tomato rose
clothes clothing wear: shirt dress shoe jacket jeans hat coat
weather: rain snow sun wind storm hot cold
color colour: red blue green yellow black white purple orange pink brown
day: monday tuesday wednesday thursday friday saturday sunday
error bug problem fail issue: exception traceback crash wrong broken failure fault
database db: sqlite postgres postgresql mysql redis mongodb sql table query schema
language: python javascript typescript java rust go ruby kotlin swift english german french spanish
test: pytest assert mock coverage unittest fixture
deploy server hosting: docker kubernetes aws azure nginx container cloud vm
subject field: math physics chemistry biology history geography economics psychology philosophy law literature
qualification degree: bachelor master phd diploma certificate graduate
company firm organization: google amazon microsoft apple startup agency bank corporation business
device gadget hardware: phone laptop computer tablet camera headphone printer keyboard monitor iphone android
platform system os: linux ubuntu debian windows mac macos ios android
framework library package: react django flask fastapi pandas numpy vue angular spring rails
editor ide: vim emacs vscode pycharm
browser: chrome firefox safari edge
format file: csv json xml yaml pdf png excel markdown zip
network connection: wifi router vpn dns proxy port firewall ip
security secret credential: password token key certificate encryption login
media: facebook instagram twitter youtube tiktok blog podcast newspaper
holiday: christmas easter thanksgiving halloween hanukkah ramadan eve
season: spring summer autumn winter
month: january february march april june july august september october november december
furniture: table chair sofa couch bed desk shelf lamp cupboard
room: kitchen bedroom bathroom garage basement attic office garden
appliance: fridge oven dishwasher washer microwave kettle heater
material fabric: wood metal plastic glass cotton leather wool stone steel silk
body: arm leg head hand foot back shoulder knee heart stomach eye ear skin
diet: vegan vegetarian keto calorie protein gluten sugar weight
craft handmade: knit sew crochet pottery quilt carve clay woodwork
dance: ballet salsa tango waltz hip ballroom
politics political government: election vote president minister senator party campaign law mayor
disaster: earthquake flood hurricane fire tornado storm
loss grief death: funeral pass mourn bury memory
crime: theft steal rob police arrest jail fraud
pay payment: card cash paypal transfer invoice bank
personality character trait: kind honest brave shy patient generous funny loyal creative smart
"""


def kin_of(asked: Iterable[str]) -> frozenset[str]:
    """Give the terms for what is of a kind that one of the terms names, without the terms themselves."""
    terms = frozenset(asked)
    kinds = _kinds()
    return frozenset().union(*(kinds[term] for term in terms & kinds.keys())) - terms


@functools.cache
def _kinds() -> Mapping[str, frozenset[str]]:
    """Read the table: for each term that names a kind the terms of that kind, other names of it among them."""
    kinds: dict[str, frozenset[str]] = {}
    for line in _KIND_WORDS.replace("\n  ", " ").splitlines():
        names, _, members = line.partition(":")
        named = frozenset(map(term_of, names.split()))
        for name in named:
            kinds[name] = kinds.get(name, frozenset()) | named | frozenset(map(term_of, members.split()))
    return kinds
