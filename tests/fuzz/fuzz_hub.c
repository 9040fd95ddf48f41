/* Reads arbitrary bytes as answers of a model server: up to the first NUL headers and names, then a
 * list of files. Every accepted path stays below its folder, every id is hexadecimal, and a saved
 * list loads unchanged. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "hub/hub.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
wrong(const char *what, const char *s)
{
	fprintf(stderr, "fuzz_hub: %s: %s\n", what, s);
	abort();
}

/* Checks what hub_path_is_safe promises, without its code. */
static void
check_path(const char *path)
{
	char copy[4096];

	if (snprintf(copy, sizeof copy, "/%s/", path) >= (int)sizeof copy || !*path)
		wrong("length", path);
	if (strstr(copy, "/../") || strstr(copy, "/./") || strstr(copy, "//") || strchr(copy, '\\'))
		wrong("a path that leads out", path);
}

static void
check_files(const HubTree *t)
{
	for (size_t i = 0; i < t->n; i++) {
		const HubFile *f = &t->file[i];
		check_path(f->path);
		if (f->size < 0 || (!f->oid && !f->sha256) || (f->oid && !hub_is_hex(f->oid, 40)) ||
		    (f->sha256 && !hub_is_hex(f->sha256, 64)))
			wrong("a file without size or id", f->path);
	}
}

static void
check_saved(const HubTree *t, Arena *a)
{
	HubTree again = { 0 };
	char path[80];

	folder_make();
	snprintf(path, sizeof path, "%s/tree.json", folder);
	if (hub_tree_save(t, path, NULL) != LLMC_OK)
		return;
	llmc_status s = hub_tree_load(&again, path, a, NULL);
	unlink(path);
	for (size_t i = 0; i < t->n; i++)
		for (size_t k = 0; k < i; k++)
			if (strcmp(t->file[i].path, t->file[k].path) == 0)
				return; /* a JSON object with the same path twice does not load */
	if (s != LLMC_OK || again.n != t->n)
		wrong("the saved list does not load", t->n ? t->file[0].path : "empty");
	for (size_t i = 0; i < t->n; i++) {
		const HubFile *f = hub_tree_find(&again, t->file[i].path);
		if (!f || f->size != t->file[i].size || !f->sha256 != !t->file[i].sha256)
			wrong("the saved list differs", t->file[i].path);
	}
}

/* Chooses files from a list by a model name. */
static void
check_choice(const HubTree *t, const char *text, Arena *a)
{
	static const char *const wants[] = { NULL, "Q4_K_M", "a" };
	HubChoice c;

	for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
		HubName name = {
			.text = text, .repo = "o/r", .revision = "main", .want = wants[i]
		};
		if (hub_choose(t, &name, a, &c, NULL) != LLMC_OK)
			continue;
		for (size_t k = 0; k < c.n; k++)
			if (c.file[k] < t->file || c.file[k] >= t->file + t->n)
				wrong("a choice outside the list", text);
	}
}

static void
check_text(const char *text, Arena *a)
{
	HubName name;
	int64_t first, total;

	if (hub_is_name(text) &&
	    hub_name_parse(text, "https://huggingface.co", a, &name, NULL) == LLMC_OK) {
		check_path(name.url ? hub_url_file(name.url, a) : name.repo);
		check_path(name.revision);
		if (name.want)
			check_path(name.want);
	}
	http_next_link(text, a);
	if (http_content_range(text, &first, &total) &&
	    (first < 0 || (total >= 0 && total <= first)))
		wrong("a range outside the file", text);
	if (http_same_origin(text, "https://huggingface.co") &&
	    strncasecmp(text, "https://huggingface.co", 22) != 0)
		wrong("another origin", text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *nul = memchr(data, 0, size);
	HubTree t = { 0 };
	Arena a;

	if (!nul)
		return 0;
	arena_init(&a);
	if (setjmp(a.oom) == 0) {
		size_t n = size - (size_t)(nul + 1 - data);
		check_text((const char *)data, &a);
		if (hub_tree_parse(&t, (const char *)nul + 1, n, &a, NULL) == LLMC_OK) {
			check_files(&t);
			check_saved(&t, &a);
			check_choice(&t, (const char *)data, &a);
		}
	}
	arena_release(&a);
	return 0;
}
