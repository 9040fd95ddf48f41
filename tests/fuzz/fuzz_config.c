/* Malformed config.json files: import returns a description that can be read back, or a message.
 *
 * An input is a list of edits to a published file of tests/golden/config-fixtures, which has one
 * key per line. Byte 0 selects the file, then 4 bytes per edit: line (16 bits), operation, operand.
 * Text that begins with '{' is used as a file itself. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "compiler/spec/spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TOP "tests/golden/config-fixtures"
enum { MAX_FILES = 128, MAX_LINES = 4096, MAX_EDITS = 8 };

static char *file[MAX_FILES];
static int n_file;
static char folder[256], path[300];

static void
die(const char *what, const char *text)
{
	fprintf(stderr, "fuzz_config: %s: %s\n", what, text);
	abort();
}

static int
by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void
read_file(const char *name, const char *kind)
{
	char at[600];
	Strbuf text = { 0 };
	llmc_error err;

	snprintf(at, sizeof at, TOP "/%s/%s", name, kind);
	if (n_file == MAX_FILES || !file_exists(at))
		return;
	if (file_read(at, 1 << 20, &text, &err) != LLMC_OK)
		die(at, err.text);
	file[n_file++] = strdup(text.data);
	strbuf_release(&text);
}

static void
clean(void)
{
	remove(path);
	rmdir(folder);
}

static void
read_files(void)
{
	char *name[MAX_FILES];
	int n = 0;
	DIR *dir = opendir(TOP);
	const char *tmp = getenv("TMPDIR");

	if (!dir)
		die("no folder", TOP);
	for (struct dirent *e; (e = readdir(dir)) && n < MAX_FILES;)
		if (e->d_name[0] != '.')
			name[n++] = strdup(e->d_name);
	closedir(dir);
	qsort(name, (size_t)n, sizeof *name, by_name);
	for (int i = 0; i < n; i++) {
		read_file(name[i], "config.json");
		read_file(name[i], "transformers.json");
		free(name[i]);
	}
	snprintf(folder, sizeof folder, "%s/llmc-fuzz-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (!mkdtemp(folder))
		die("no folder", folder);
	snprintf(path, sizeof path, "%s/config.json", folder);
	atexit(clean);
}

static const char *const values[] = {
	"0",
	"1",
	"2",
	"-1",
	"3",
	"7",
	"64",
	"128",
	"4096",
	"65536",
	"2147483647",
	"4294967296",
	"1e300",
	"-0.5",
	"1e-6",
	"0.5",
	"null",
	"true",
	"false",
	"\"\"",
	"\"silu\"",
	"\"yarn\"",
	"\"llama3\"",
	"\"sigmoid\"",
	"\"noaux_tc\"",
	"\"full_attention\"",
	"[]",
	"[1, 2, 3]",
	"[0.5]",
	"[\"sliding_attention\", \"full_attention\"]",
	"{}",
	"{\"rope_type\": \"yarn\", \"factor\": 8}",
	"{\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": []}",
	"{\"rope_type\": \"linear\"}",
	"[[1], [2]]",
	"\"a\\u0000b\"",
	"{\"text_config\": {\"hidden_size\": 4}}",
	"18446744073709551616"
};

/* Writes the line with another value, with another key, twice, or not at all. */
static void
put_line(Strbuf *out, const char *line, size_t n, const uint8_t *e)
{
	const char *colon = memchr(line, ':', n),
	           *value = values[e[3] % (sizeof values / sizeof *values)];
	bool comma = n && line[n - 1] == ',';

	switch (e[2] % 6) {
	case 0:
		return;
	case 1:
		strbuf_add(out, line, n);
		strbuf_putc(out, '\n');
		strbuf_add(out, line, n);
		return;
	case 2: /* change a bit of the key or the value */
		strbuf_add(out, line, n);
		if (n)
			out->data[out->len - 1 - e[3] % n] ^= 2;
		return;
	default:
		if (!colon) {
			strbuf_add(out, line, n);
			return;
		}
		strbuf_add(out, line, (size_t)(colon - line) + 1);
		strbuf_puts(out, value);
		if (comma)
			strbuf_putc(out, ',');
	}
}

static void
apply(const char *text, const uint8_t *data, size_t size, Strbuf *out)
{
	size_t lines = 1;

	for (const char *p = text; *p; p++)
		lines += *p == '\n';
	for (size_t i = 0; *text; i++) {
		size_t n = strcspn(text, "\n"), edit = 0,
		       k = size < 4 * MAX_EDITS ? size / 4 : MAX_EDITS;
		while (edit < k && (data[4 * edit] | (size_t)data[4 * edit + 1] << 8) % lines != i)
			edit++;
		if (edit < k)
			put_line(out, text, n, data + 4 * edit);
		else
			strbuf_add(out, text, n);
		strbuf_putc(out, '\n');
		text += n + (text[n] == '\n');
	}
}

static void
take(Diag *d, Arena *perm)
{
	llmc_error err = { 0 };

	if (setjmp(perm->oom))
		return;
	diag_init(d, perm);
	if (setjmp(d->bug))
		die("a fault", strbuf_str(&d->text));
	char *yaml = import_yaml(folder, &(ImportOptions){ 0 }, d, perm, &err);
	if (!yaml && !d->n_error && !*err.text)
		die("refused without a word", folder);
	if (!yaml)
		return;
	Spec *s = spec_from_text("imported", yaml, strlen(yaml), NULL, d, perm);
	if (!s)
		die("import wrote what it cannot read", strbuf_str(&d->text));
	Spec *again = spec_from_text("resolved", s->yaml, strlen(s->yaml), NULL, d, perm);
	if (!again || strcmp(again->yaml, s->yaml) != 0)
		die("a resolved description reads back as another", s->yaml);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Strbuf text = { 0 };
	Arena perm;
	Diag d;

	if (n_file == 0)
		read_files();
	if (size == 0)
		return 0;
	if (*data == '{')
		strbuf_add(&text, (const char *)data, size);
	else
		apply(file[*data % n_file], data + 1, size - 1, &text);
	FILE *f = fopen(path, "wb");
	if (!f || fwrite(text.data, 1, text.len, f) != text.len || fclose(f) != 0)
		die("no file", path);
	arena_init(&perm);
	memset(&d, 0, sizeof d);
	take(&d, &perm);
	arena_release(&perm);
	strbuf_release(&text);
	return 0;
}
