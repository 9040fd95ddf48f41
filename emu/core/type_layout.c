/* Names for bytes of a shared struct and for pointers among a kernel's parameters. They come from
 * clang's record layouts, which the kernel's object contains (nvrtc/build.c). */
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 8 };

/* Extracts T from "... [T = record<1, 2>]", the output of emu_type<T>(). */
static bool
type_name(const char *pretty, char out[256])
{
	const char *p = pretty ? strstr(pretty, "[T = ") : NULL,
	           *end = pretty ? strrchr(pretty, ']') : NULL;

	if (!p || !end || end - p < 6 || end - p - 5 > 255)
		return false;
	snprintf(out, 256, "%.*s", (int)(end - p - 5), p + 5);
	return true;
}

/* Parses the lines of a layout, for example "   128 |     float[32] part", indented by two blanks
 * per level. The first line is the record itself. */
char *
member_of(const Func *f, const char *pretty, size_t off)
{
	char type[256], line[1024], name[DEPTH][128];
	size_t at[DEPTH] = { 0 };
	int depth = 0;
	bool inside = false;
	FILE *in = f->layouts && type_name(pretty, type)
	               ? fmemopen((void *)(uintptr_t)f->layouts,
	                          (size_t)(f->layouts_end - f->layouts), "r")
	               : NULL;

	while (in && fgets(line, sizeof line, in)) {
		char *bar = strchr(line, '|'), *end, *text = bar ? bar + 1 : line;
		line[strcspn(line, "\n")] = 0;
		size_t o = strtoul(line, &end, 10);
		if (!bar || end == line || text[0] != ' ') {
			if (inside)
				break; /* the line has the record's size, or starts the next record
				        */
			continue;
		}
		size_t blanks = strspn(text, " ");
		if (blanks == 1) {
			const char *what = text + 1;
			what += !strncmp(what, "struct ", 7)  ? 7
			        : !strncmp(what, "union ", 6) ? 6
			        : !strncmp(what, "class ", 6) ? 6
			                                      : 0;
			if (inside)
				break;
			inside = !strcmp(what, type);
			continue;
		}
		int level = (int)(blanks - 1) / 2 - 1;
		const char *last = strrchr(text, ' ');
		if (!inside || o > off || level < 0 || level >= DEPTH || level > depth || !last ||
		    strchr(text, '('))
			continue;
		snprintf(name[level], sizeof name[level], "%.127s", last + 1);
		at[level] = o;
		depth = level + 1;
	}
	if (in)
		fclose(in);
	if (!depth)
		return NULL;
	char *path = emu_format("%s", name[0]);
	for (int i = 1; i < depth; i++) {
		char *more = emu_format("%s.%s", path, name[i]);
		free(path);
		path = more;
	}
	char *text = emu_format("byte %zu of %s", off - at[depth - 1], path);
	free(path);
	return text;
}

/* Finds the name that "#define ARG_<name> ... a[i] ..." gives to an entry of array a of
 * llmc_call. */
static bool
argument_name(const char *source, size_t index, char name[64])
{
	char entry[32];
	size_t n = (size_t)snprintf(entry, sizeof entry, "a[%zu]", index);

	for (const char *p = source; p && (p = strstr(p, "#define ARG_")); p++) {
		const char *end = strchr(p, '\n'), *at = strstr(p, entry);
		if (at && (!end || at + n <= end) && sscanf(p + 12, "%63[A-Za-z0-9_]", name) == 1)
			return true;
	}
	return false;
}

char *
func_argument(const Func *f, int param, size_t off)
{
	char *member = member_of(f, "[T = llmc_call]", off), name[64];
	unsigned long byte = member ? strtoul(member + strcspn(member, "0123456789"), NULL, 10) : 0;
	const char *of = member ? strstr(member, " of ") : NULL;
	char *text;

	if (of && !strcmp(of, " of a"))
		text = argument_name(f->source, byte / 8, name)
		           ? emu_format("argument %lu, %s", byte / 8, name)
		           : emu_format("argument %lu", byte / 8);
	else if (of)
		text = emu_format("the parameter's %s", of + 4);
	else
		text = emu_format("the pointer at byte %zu of parameter %d", off, param + 1);
	free(member);
	return text;
}
