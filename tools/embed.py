#!/usr/bin/env python3
"""Write a C file that holds configs/, templates/ and pages as byte arrays (base/embed.h).

Usage: embed.py OUT.c"""
import os
import sys


def files():
    for top in ("configs", "templates"):
        for folder, dirs, names in os.walk(top):
            dirs.sort()
            for name in sorted(names):
                if name.endswith((".yaml", ".c.in", ".cu.in", ".head", ".cu", ".h", ".txt")):
                    yield os.path.join(folder, name)
    page = "serve/page"
    for name in sorted(os.listdir(page)):
        if name.endswith((".html", ".js", ".css", ".svg", ".json")):
            yield os.path.join(page, name)
    yield "cli/plan.html"


def main():
    paths = sorted(files())
    out = ['/* made by tools/embed.py */', '#include "base/embed.h"', '#include <string.h>', '']
    for i, path in enumerate(paths):
        with open(path, "rb") as f:
            data = f.read() + b"\0"
        out.append(f"static const unsigned char f{i}[] = {{ /* {path} */")
        out += ["\t" + "".join(f"{b}," for b in data[k:k + 32]) for k in range(0, len(data), 32)]
        out.append("};")
    out.append("static const struct { const char *path; const unsigned char *data; size_t size; } file[] = {")
    out += [f'\t{{ "{path}", f{i}, sizeof f{i} - 1 }},' for i, path in enumerate(paths)]
    out.append("};\n")
    out.append("""const char *
embed_find(const char *path, size_t *size)
{
	for (size_t i = 0; i < sizeof file / sizeof *file; i++)
		if (strcmp(file[i].path, path) == 0) {
			if (size)
				*size = file[i].size;
			return (const char *)file[i].data;
		}
	return NULL;
}""")
    text = "\n".join(out) + "\n"
    target = sys.argv[1]
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    if not os.path.exists(target) or open(target).read() != text:
        with open(target, "w") as f:
            f.write(text)


main()
