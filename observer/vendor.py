"""Fetch the browser libraries the observer serves itself, or check that they are what was fetched.

`vendor.json` names each package, its version, and for each file its place in the package and its hash. The
hashes are computed here from the files, never copied from a package's own documentation.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "eunoe_observer" / "static" / "vendor"
LIST = FOLDER / "vendor.json"


def main() -> int:
    """Fetch or check; return the exit code."""
    parser = argparse.ArgumentParser(description="Fetch the observer's browser libraries with npm.")
    parser.add_argument("--check", action="store_true", help="only compare the files here with vendor.json")
    packages: list[dict[str, Any]] = json.loads(LIST.read_text())
    if parser.parse_args().check:
        changed = differences(packages)
        sys.stderr.writelines(f"{name} is not what vendor.json names; run: make vendor\n" for name in changed)
        return 1 if changed else 0
    licenses = []
    for package in packages:
        with tempfile.TemporaryDirectory() as folder:
            licenses.append(fetch(package, Path(folder)))
    LIST.write_text(json.dumps(packages, indent=2) + "\n")
    (FOLDER / "LICENSES").write_text("\n".join(licenses))
    return 0


def fetch(package: dict[str, Any], folder: Path) -> str:
    """Copy the package's files here, note their hashes, and return its license."""
    name = f"{package['name']}@{package['version']}"
    packed = subprocess.run(  # noqa: S603 - the arguments come from our own list
        ["npm", "pack", "--silent", "--pack-destination", str(folder), name],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
    )
    with tarfile.open(folder / packed.stdout.split()[-1]) as archive:

        def read(path: str) -> bytes:
            member = archive.extractfile(f"package/{path}")
            if member is None:
                raise SystemExit(f"{name} has no {path}")
            return member.read()

        for file in package["files"]:
            content = read(file["from"])
            (FOLDER / file["name"]).write_bytes(content)
            file["sha384"] = sha384(content)
        return f"{name}\n\n{read(package['license']).decode()}"


def differences(packages: list[dict[str, Any]]) -> list[str]:
    """Name the files that are missing or changed."""
    files = [file for package in packages for file in package["files"]]
    return [
        file["name"]
        for file in files
        if not (FOLDER / file["name"]).is_file()
        or sha384((FOLDER / file["name"]).read_bytes()) != file["sha384"]
    ]


def sha384(content: bytes) -> str:
    """Hash in the form that browsers use."""
    return "sha384-" + base64.b64encode(hashlib.sha384(content).digest()).decode()


if __name__ == "__main__":
    sys.exit(main())
