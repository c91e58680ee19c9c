"""docker-compose.yml says what the programs read; no engine runs here, so its rules are checked one by one."""

from __future__ import annotations

import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import environments

ROOT = Path(__file__).resolve().parents[2]
SECRETS = {
    "WEBUI_SECRET_KEY": "s" * 32,
    "EUNOE_OBSERVER_TOKEN": "t" * 32,
    "OPEN_WEBUI_EMAIL": "admin@eunoe.example",
    "OPEN_WEBUI_PASSWORD": "p" * 12,
}
# What the compose specification knows, of what this file may use.
SERVICE_KEYS = {
    *("image", "build", "restart", "ports", "environment", "extra_hosts", "volumes", "healthcheck"),
    *("entrypoint", "command", "depends_on"),
}
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


class Unset(Exception):
    """A variable that must be set is not."""


def interpolated(value: Any, env: Mapping[str, str]) -> Any:
    """The file with variables put in, as the specification says: `:-` has a default, `:?` must be set."""

    def put(found: re.Match[str]) -> str:
        name, rule, rest = found.groups()
        given = env.get(name, "")
        if not given and rule == "?":
            raise Unset(name)
        return given or (rest if rule == "-" else "")

    if isinstance(value, dict):
        return {key: interpolated(item, env) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolated(item, env) for item in value]
    return VARIABLE.sub(put, value) if isinstance(value, str) else value


@pytest.fixture
def written() -> dict[str, Any]:
    """The file as it is written."""
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))


@pytest.fixture
def services(written: dict[str, Any]) -> dict[str, Any]:
    """The services as compose would start them."""
    return dict(interpolated(written, SECRETS)["services"])


def test_the_file_has_only_what_the_specification_knows(written: dict[str, Any]) -> None:
    assert set(written) == {"name", "services", "volumes"}
    assert set(written["services"]) == {"open-webui", "observer", "installer"}
    for service in written["services"].values():
        assert set(service) <= SERVICE_KEYS
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in written["volumes"]
        for needed, rule in service.get("depends_on", {}).items():
            assert rule == {"condition": "service_healthy"}
            assert "healthcheck" in written["services"][needed]


def test_images_are_pinned(services: dict[str, Any]) -> None:
    assert services["open-webui"]["image"] == f"ghcr.io/open-webui/open-webui:{environments.OPEN_WEBUI}-slim"
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    for name in ("observer", "installer"):
        assert services[name]["image"] == f"eunoe-observer:{version[1]}"
        assert services[name]["build"] == {"context": ".", "dockerfile": "observer/Dockerfile"}
        assert (ROOT / services[name]["build"]["dockerfile"]).is_file()


def test_pages_are_published_on_this_machine_only(services: dict[str, Any]) -> None:
    assert services["open-webui"]["ports"] == ["127.0.0.1:8080:8080"]
    assert services["observer"]["ports"] == ["127.0.0.1:7456:7456"]
    assert "ports" not in services["installer"]
    dockerfile = (ROOT / "observer/Dockerfile").read_text()
    assert "EUNOE_OBSERVER_HOST=0.0.0.0" in dockerfile
    assert "EXPOSE 7456" in dockerfile


@pytest.mark.parametrize("missing", SECRETS)
def test_no_secret_has_a_default(written: dict[str, Any], missing: str) -> None:
    for given in ({**SECRETS, missing: ""}, {name: SECRETS[name] for name in SECRETS if name != missing}):
        with pytest.raises(Unset, match=missing):
            interpolated(written, given)


def test_the_example_names_every_variable_and_gives_no_secret_away(written: dict[str, Any]) -> None:
    used = {found[1] for found in VARIABLE.finditer((ROOT / "docker-compose.yml").read_text())}
    lines = [line.lstrip("#") for line in (ROOT / ".env.example").read_text().splitlines() if "=" in line]
    example = dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))
    assert set(example) == used
    assert not any(example[name] for name in SECRETS)


def test_both_sides_of_the_events_get_the_same_token(services: dict[str, Any]) -> None:
    token = SECRETS["EUNOE_OBSERVER_TOKEN"]
    assert services["observer"]["environment"]["EUNOE_OBSERVER_TOKEN"] == token
    assert services["installer"]["environment"]["EUNOE_OBSERVER_TOKEN"] == token
    assert services["installer"]["environment"]["EUNOE_OBSERVER_URL"] == "http://observer:7456"
    assert services["installer"]["environment"]["OPEN_WEBUI_URL"] == "http://open-webui:8080"


@pytest.mark.parametrize(
    ("service", "sources"),
    [
        ("observer", ["observer/eunoe_observer/settings.py"]),
        ("installer", ["filter/install.py"]),
    ],
)
def test_our_programs_read_what_they_are_given(
    services: dict[str, Any], service: str, sources: list[str]
) -> None:
    text = "".join((ROOT / source).read_text() for source in sources)
    for name in services[service]["environment"]:
        assert f'"{name}"' in text


@pytest.mark.e2e
def test_open_webui_reads_what_it_is_given(services: dict[str, Any]) -> None:
    (package,) = environments.open_webui().glob("lib/python3.*/site-packages/open_webui")
    text = (package / "env.py").read_text() + (package / "config.py").read_text()
    # These two are read by libraries that the image may have, and by its start script.
    others = {"DO_NOT_TRACK", "SCARF_NO_ANALYTICS", "ANONYMIZED_TELEMETRY"}
    for name in set(services["open-webui"]["environment"]) - others:
        assert re.search(rf"""['"]{name}['"]""", text), name


def test_the_installer_is_where_the_image_has_it(services: dict[str, Any]) -> None:
    dockerfile = (ROOT / "observer/Dockerfile").read_text()
    (folder,) = re.findall(r"^WORKDIR (\S+)\n(?:COPY .*\n)*COPY filter filter\n", dockerfile, re.MULTILINE)
    assert services["installer"]["entrypoint"] == ["python", f"{folder}/filter/install.py"]
    assert (ROOT / "filter/install.py").is_file()
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    for copied in re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE):
        for name in copied.split():
            assert f"!{name}" in kept, f"{name} is copied into the image but ignored"


class Health(http.server.BaseHTTPRequestHandler):
    """Answers 200 to the two health pages while it is well."""

    well = True

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200 if self.well and self.path in {"/health", "/healthz"} else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def health() -> Iterator[type[Health]]:
    """A handler class whose server listens at `port`."""

    class Own(Health):
        port = 0

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
        Own.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Own
        server.shutdown()
        thread.join(10)


@pytest.mark.parametrize("service", ["open-webui", "observer"])
def test_health_checks_run_and_can_fail(services: dict[str, Any], health: Any, service: str) -> None:
    check = services[service]["healthcheck"]
    kind, program, option, code = check["test"]
    assert (kind, program, option) == ("CMD", "python3", "-c")
    port = services[service]["ports"][0].rpartition(":")[2]
    assert code.count(f":{port}/") == 1
    code = code.replace(f":{port}/", f":{health.port}/")
    for well in (True, False):
        health.well = well
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=False)
        assert (done.returncode == 0) is well
    assert set(check) == {"test", "interval", "timeout", "retries", "start_period"}


def test_what_runs_on_restarts_and_the_installer_does_not(services: dict[str, Any]) -> None:
    restarts = {name: service["restart"] for name, service in services.items()}
    assert restarts == {"open-webui": "unless-stopped", "observer": "unless-stopped", "installer": "no"}
