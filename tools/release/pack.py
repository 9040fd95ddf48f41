"""Release files from a built tree: tarball, Debian package, Python wheel, SBOM. The same tree gives the same bytes: names are sorted, and times are SOURCE_DATE_EPOCH."""

import base64
import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path

import binaries
import libraries

ROOT = binaries.ROOT
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
EFFORT = 6  # compression level, 0 to 9
SUMMARY = "a static compiler for language models"
PC = """prefix=${pcfiledir}/../..
libdir=${prefix}/lib
includedir=${prefix}/include

Name: llmc
Description: A static compiler for language models
Version: @VERSION@
Libs: -L${libdir} -lllmc
Cflags: -I${includedir}
"""


def epoch():
    """SOURCE_DATE_EPOCH, or the time of the last commit."""
    own = os.environ.get("SOURCE_DATE_EPOCH")
    if own:
        return int(own)
    r = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True
    )
    return int(r.stdout) if r.returncode == 0 else 0


def put(source, target, mode=0o644):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def stage(arch, built, share, kernels):
    """A prefix with everything that a package of an architecture contains."""
    top, version = binaries.build_folder() / f"stage-{arch}", binaries.version()
    shutil.rmtree(top, ignore_errors=True)
    put(built / "llmc", top / "bin/llmc", 0o755)
    put(built / "libllmc.so", top / f"lib/libllmc.so.{version}", 0o755)
    (top / "lib/libllmc.so.0").symlink_to(f"libllmc.so.{version}")
    (top / "lib/libllmc.so").symlink_to("libllmc.so.0")
    put(ROOT / "include/llmc.h", top / "include/llmc.h")
    pc = top / "lib/pkgconfig/llmc.pc"
    pc.parent.mkdir()
    pc.write_text(PC.replace("@VERSION@", version))
    for path in sorted(kernels.glob("*.so")) if kernels else ():
        put(path, top / "lib/llmc/kernels" / path.name)
    shutil.copytree(share, top / "share")
    doc = top / "share/doc/llmc"
    put(ROOT / "README.md", doc / "README.md")
    licences(doc)
    (doc / "llmc.spdx.json").write_text(sbom(arch, top))
    return top


def licences(folder):
    put(ROOT / "LICENSE", folder / "LICENSE")
    for name, row in libraries.rows().items():
        source = binaries.build_folder() / "sources" / f"{name}-{row['version']}" / row["text"]
        put(source, folder / "licences" / name)


def spdx_package(name, version, licence, home, **more):
    return {
        "SPDXID": f"SPDXRef-Package-{name}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": home,
        "filesAnalyzed": False,
        "licenseConcluded": licence,
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
        **more,
    }


def sbom(arch, top):
    """SPDX 2.3: llmc, the libraries inside it, and the files with code."""
    version = binaries.version()
    packages = [spdx_package("llmc", version, "Apache-2.0", "NOASSERTION")]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Package-llmc")]
    for name, row in sorted(libraries.rows().items()):
        packages.append(
            spdx_package(
                *(name, row["version"], row["licence"], row["home"]),
                packageFileName=row["archive"],
                checksums=[{"algorithm": "SHA256", "checksumValue": row["sha256"]}],
            )
        )
        relations.append((f"SPDXRef-Package-{name}", "STATIC_LINK", "SPDXRef-Package-llmc"))
    files = []
    for i, path in enumerate(p for p in sorted(top.rglob("*")) if p.is_file() and code(p)):
        data = path.read_bytes()
        files.append(
            {
                "SPDXID": f"SPDXRef-File-{i}",
                "fileName": f"./{path.relative_to(top)}",
                "checksums": [
                    {"algorithm": a.upper(), "checksumValue": hashlib.new(a, data).hexdigest()}
                    for a in ("sha1", "sha256")
                ],
                "licenseConcluded": "Apache-2.0",
                "licenseInfoInFiles": ["NOASSERTION"],
                "copyrightText": "NOASSERTION",
            }
        )
        relations.append(("SPDXRef-Package-llmc", "CONTAINS", f"SPDXRef-File-{i}"))
    text = json.dumps(files, sort_keys=True).encode()
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"llmc-{version}-linux-{arch}",
        "documentNamespace": f"https://spdx.org/spdxdocs/llmc-{version}-{arch}-{hashlib.sha256(text).hexdigest()[:32]}",
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch())),
            "creators": ["Tool: llmc-release"],
        },
        "packages": packages,
        "files": files,
        "relationships": [
            {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
            for a, kind, b in relations
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def code(path):
    return not path.is_symlink() and (
        path.suffix in (".so", ".h")
        or path.name == "llmc"
        and path.parent.name == "bin"
        or path.name.startswith("libllmc.so")
    )


def dist(name):
    folder = binaries.build_folder() / "dist"
    folder.mkdir(exist_ok=True)
    return folder / name


def tarball(arch, top):
    """llmc-VERSION-linux-ARCH.tar.xz, to unpack anywhere."""
    name = f"llmc-{binaries.version()}-linux-{arch}"
    out = dist(f"{name}.tar.xz")

    def clean(info):
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = epoch()
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    with lzma.open(out, "wb", preset=EFFORT) as z, tarfile.open(fileobj=z, mode="w") as t:
        for path in [top, *sorted(top.rglob("*"))]:
            t.add(path, Path(name) / path.relative_to(top), recursive=False, filter=clean)
    return out


CONTROL = """Package: llmc
Version: {version}
Architecture: {arch}
Maintainer: llmc developers <llmc@localhost>
Installed-Size: {size}
Depends: libc6 (>= {glibc})
Recommends: gcc | c-compiler, libc6-dev | libc-dev, ca-certificates, libcurl4 | libcurl3-gnutls
Section: science
Priority: optional
Description: {summary}
 It reads a YAML description of a model, a GGUF file or a Hugging Face folder,
 compiles kernels for exactly that model, and runs or serves it.
"""


def deb(arch, top):
    """llmc_VERSION_ARCH.deb, with files below /usr."""
    version = binaries.version()
    root = binaries.build_folder() / f"deb-{arch}"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(top, root / "usr", symlinks=True)
    for page in (root / "usr/share/man/man1").iterdir():
        page.with_suffix(".1.gz").write_bytes(gzip.compress(page.read_bytes(), 9, mtime=0))
        page.unlink()
    doc = root / "usr/share/doc/llmc"
    (doc / "LICENSE").rename(doc / "copyright")
    size = sum(p.stat().st_size for p in root.rglob("*") if not p.is_symlink()) // 1024
    control = root / "DEBIAN/control"
    control.parent.mkdir()
    control.write_text(
        CONTROL.format(
            version=version, arch=DEBIAN[arch], size=size, glibc=binaries.GLIBC, summary=SUMMARY
        )
    )
    (control.parent / "triggers").write_text("activate-noawait ldconfig\n")
    for path in root.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    root.chmod(0o755)
    out = dist(f"llmc_{version}_{DEBIAN[arch]}.deb")
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zxz", f"-z{EFFORT}", "--build", root, out],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch())},
    )
    return out


def wheel_metadata():
    project = (ROOT / "bindings/python/pyproject.toml").read_text()
    python = re.search(r'requires-python = "(.*)"', project)[1]
    summary = re.search(r'description = "(.*)"', project)[1]
    return (
        f"Metadata-Version: 2.1\nName: llmc\nVersion: {binaries.version()}\nSummary: {summary}\n"
        f"License: Apache-2.0\nRequires-Python: {python}\nProvides-Extra: compiler\n"
        "Requires-Dist: ziglang; extra == 'compiler'\nProvides-Extra: numpy\n"
        "Requires-Dist: numpy; extra == 'numpy'\nDescription-Content-Type: text/markdown\n\n"
        + (ROOT / "bindings/python/README.md").read_text()
    )


def wheel(arch, top):
    """llmc-VERSION-py3-none-manylinux_2_28_ARCH.whl: the binding, with library and command."""
    version, tag = (
        binaries.version(),
        f"py3-none-manylinux_{binaries.GLIBC.replace('.', '_')}_{arch}",
    )
    files = {}
    for path in sorted((ROOT / "bindings/python/llmc").rglob("*")):
        if path.suffix == ".py" or path.name == "py.typed":
            files[f"llmc/{path.relative_to(ROOT / 'bindings/python/llmc')}"] = path
    files["llmc/_native/bin/llmc"] = top / "bin/llmc"
    files["llmc/_native/lib/libllmc.so"] = top / f"lib/libllmc.so.{version}"
    files["llmc/_native/include/llmc.h"] = top / "include/llmc.h"
    for path in sorted((top / "lib/llmc").rglob("*.so")):
        files[f"llmc/_native/lib/{path.relative_to(top / 'lib')}"] = path
    info = f"llmc-{version}.dist-info"
    for path in sorted((top / "share/doc/llmc/licences").iterdir()):
        files[f"{info}/licences/{path.name}"] = path
    files[f"{info}/LICENSE"] = ROOT / "LICENSE"
    files[f"{info}/sboms/llmc.spdx.json"] = top / "share/doc/llmc/llmc.spdx.json"
    files[f"{info}/METADATA"] = wheel_metadata().encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: llmc\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nllmc = llmc.__main__:main\n"
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    out = dist(f"llmc-{version}-{tag}.whl")
    # earliest time of the format: 1980
    date = time.gmtime(max(epoch(), 315532800))[:6]
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=EFFORT) as z:
        for name, source in files.items():
            data = source if isinstance(source, bytes) else source.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.writerow([name, f"sha256={digest}", len(data)])
            add(z, name, data, date, name.endswith("bin/llmc"))
        rows.writerow([f"{info}/RECORD", "", ""])
        add(z, f"{info}/RECORD", record.getvalue().encode(), date, False)
    return out


def add(archive, name, data, date, runs):
    info = zipfile.ZipInfo(name, date)
    info.create_system = 3
    info.external_attr = (0o100755 if runs else 0o100644) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)


def sums():
    """SHA256SUMS over all release files, and the SBOMs next to them."""
    folder = dist("")
    for arch in binaries.ARCHES:
        path = binaries.build_folder() / f"stage-{arch}/share/doc/llmc/llmc.spdx.json"
        if path.exists():
            put(path, folder / f"llmc-{binaries.version()}-linux-{arch}.spdx.json")
    names = sorted(p.name for p in folder.iterdir() if p.name != "SHA256SUMS")
    out = folder / "SHA256SUMS"
    out.write_text("".join(f"{libraries.sha256(folder / n)}  {n}\n" for n in names))
    return out
