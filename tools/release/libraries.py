"""Sources of the libraries that release binaries contain, and static archives of them."""

import fnmatch
import glob
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent


def rows():
    with open(HERE / "libraries.toml", "rb") as f:
        return tomllib.load(f)


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def source_list():
    """The system's own package sources, as sources of source packages."""
    out = []
    for path in sorted(glob.glob("/etc/apt/sources.list.d/*.sources")):
        for part in re.split(r"\n\s*\n", Path(path).read_text()):
            out.append(re.sub(r"(?m)^Types:.*$", "Types: deb-src", part))
    old = [
        re.sub(r"^deb\b", "deb-src", line.strip())
        for path in ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*.list")]
        if os.path.exists(path)
        for line in open(path)
        if line.startswith("deb ")
    ]
    return "\n\n".join(out) + "\n", "\n".join(old) + "\n"


def fetch(folder):
    """Download the source archives that folder lacks, and check all."""
    folder.mkdir(parents=True, exist_ok=True)
    need = {n: row for n, row in rows().items() if not (folder / row["archive"]).exists()}
    if need:
        lists = folder / "apt"
        (lists / "lists/partial").mkdir(parents=True, exist_ok=True)
        (lists / "parts").mkdir(exist_ok=True)
        new, old = source_list()
        (lists / "parts/system.sources").write_text(new)
        (lists / "sources.list").write_text(old)
        apt = ["apt-get", "-qq"]
        for key, value in (
            ("Dir::Etc::sourcelist", lists / "sources.list"),
            ("Dir::Etc::sourceparts", lists / "parts"),
            ("Dir::State::lists", lists / "lists"),
            ("APT::Sandbox::User", "root"),
        ):
            apt += ["-o", f"{key}={value}"]
        subprocess.run([*apt, "update"], check=True)
        for name, row in need.items():
            # without Debian's patches, which a mirror may lack
            subprocess.run([*apt, "source", "--download-only", "--tar-only", name], cwd=folder)
            if not (folder / row["archive"]).exists():
                raise SystemExit(
                    f"release: {name}: this system has no {row['archive']}; build on Debian 12, or "
                    f"put the file into {folder}"
                )
    for row in rows().values():
        if sha256(folder / row["archive"]) != row["sha256"]:
            raise SystemExit(f"release: {folder / row['archive']}: wrong SHA-256; remove it")


def unpack(folder, name, row):
    """Unpack a library, write its configuration, and return its folder."""
    top = folder / f"{name}-{row['version']}"
    if not (top / ".ready").exists():
        shutil.rmtree(top, ignore_errors=True)
        with tarfile.open(folder / row["archive"]) as t:
            inside = t.getnames()[0].split("/")[0]
        shutil.unpack_archive(folder / row["archive"], folder)
        if inside != top.name:
            (folder / inside).rename(top)
        for path, edit in row.get("edits", {}).items():
            text = (top / edit["from"]).read_text() if "from" in edit else edit["text"]
            for old, new in edit.get("replace", {}).items():
                text = text.replace(old, new)
            (top / path).write_text(text)
        (top / ".ready").touch()
    return top


def sources(top, row):
    found = sorted(p for pattern in row["sources"] for p in glob.glob(pattern, root_dir=top))
    return [p for p in found if not any(fnmatch.fnmatch(p, x) for x in row.get("exclude", []))]


def compile_one(cc, top, row, flags, source, obj):
    if obj.exists() and obj.stat().st_mtime > (top / ".ready").stat().st_mtime:
        return
    obj.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            *(*cc, "-O2", "-fPIC", "-fvisibility=hidden", "-w", *flags),
            f"-ffile-prefix-map={top}={top.name}",
            *(f"-I{i}" for i in row["include"]),
            *(f"-D{d}" for d in row["defines"]),
            *("-c", source, "-o", obj.absolute()),
        ],
        check=True,
        cwd=top,
    )


def build(folder, out, cc, ar, jobs):
    """Compile all libraries; return compiler flags and archives."""
    flags, archives = [], []
    for name, row in rows().items():
        top = unpack(folder, name, row)
        files = sources(top, row)
        objects = [out / name / (f.replace("/", "-") + ".o") for f in files]
        with ThreadPoolExecutor(jobs) as pool:
            list(
                pool.map(
                    lambda job, top=top, row=row: compile_one(cc, top, row, [], *job),
                    zip(files, objects),
                )
            )
        archive = out / f"lib{name}.a"
        archive.unlink(missing_ok=True)
        subprocess.run([*ar, "rcsD", archive, *objects], check=True)
        archives.append(archive)
        flags += [f"-I{top / i}" for i in row["include"]]
        flags += [f"-D{d}" for d in row["defines"] if d.endswith("_STATIC")]
    return flags, archives
