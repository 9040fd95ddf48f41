#!/usr/bin/env python3
"""Write a C file with configs/, templates/ and pages as byte arrays (base/embed.h).

Usage: embed.py OUT.c"""

import hashlib
import os
import sys

import sampling_options


def files():
    for top in ("configs", "templates"):
        for folder, dirs, names in os.walk(top):
            dirs.sort()
            for name in sorted(names):
                if name.endswith(
                    (".yaml", ".c.in", ".cu.in", ".head", ".cu", ".h", ".txt", ".jinja")
                ):
                    yield os.path.join(folder, name)
    page = "serve/pages/assets"
    for name in sorted(os.listdir(page)):
        if name.endswith((".html", ".js", ".css", ".svg", ".json")):
            yield os.path.join(page, name)
    yield "cli/plan.html"
    yield "cli/llmc.1"


def contents(path):
    with open(path, "rb") as f:
        data = f.read()
    if os.path.basename(path) == "openapi.json":
        return sampling_options.openapi(data.decode()).encode()
    return data


def main():
    paths, sums = sorted(files()), []
    out = ["/* made by tools/embed.py */", '#include "base/embed.h"', "#include <string.h>", ""]
    for i, path in enumerate(paths):
        data = contents(path) + b"\0"
        sums.append(hashlib.sha256(data[:-1]).hexdigest())
        out.append(f"static const unsigned char f{i}[] = {{ /* {path} */")
        out += ["\t" + "".join(f"{b}," for b in data[k : k + 32]) for k in range(0, len(data), 32)]
        out.append("};")
    out.append(
        "static const struct { const char *path; const unsigned char *data; size_t size; const char *sum; } file[] = { /* by path */"
    )
    out += [
        f'\t{{ "{path}", f{i}, sizeof f{i} - 1, "{sums[i]}" }},' for i, path in enumerate(paths)
    ]
    out.append("};\n")
    out.append("static const short by_name[] = { /* of file, by file name */")
    out.append(
        "\t"
        + "".join(
            f"{i},"
            for i in sorted(range(len(paths)), key=lambda i: (os.path.basename(paths[i]), paths[i]))
        )
    )
    out.append("};\n")
    out.append("""/* -1: none */
static int
find(const char *path)
{
	int low = 0, high = sizeof file / sizeof *file - 1;

	while (low <= high) {
		int at = (low + high) / 2, order = strcmp(path, file[at].path);
		if (order == 0)
			return at;
		if (order < 0)
			high = at - 1;
		else
			low = at + 1;
	}
	return -1;
}

const char *
embed_find(const char *path, size_t *size)
{
	int at = find(path);

	if (at >= 0 && size)
		*size = file[at].size;
	return at < 0 ? NULL : (const char *)file[at].data;
}

static const char *
name_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

const char *
embed_find_below(const char *folder, const char *name, const char **path)
{
	size_t n = strlen(folder);
	int low = 0, high = sizeof by_name / sizeof *by_name;

	while (low < high) {
		int at = (low + high) / 2;
		if (strcmp(name_of(file[by_name[at]].path), name) < 0)
			low = at + 1;
		else
			high = at;
	}
	for (; low < (int)(sizeof by_name / sizeof *by_name) && strcmp(name_of(file[by_name[low]].path), name) == 0; low++) {
		const char *p = file[by_name[low]].path;
		if (strncmp(p, folder, n) == 0 && p[n] == '/') {
			if (path)
				*path = p;
			return (const char *)file[by_name[low]].data;
		}
	}
	return NULL;
}

const char *
embed_path(size_t i)
{
	return i < sizeof file / sizeof *file ? file[i].path : NULL;
}

const char *
embed_sum(const char *path)
{
	int at = find(path);

	return at < 0 ? NULL : file[at].sum;
}""")
    text = "\n".join(out) + "\n"
    target = sys.argv[1]
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    if not os.path.exists(target) or open(target).read() != text:
        with open(target, "w") as f:
            f.write(text)


main()
