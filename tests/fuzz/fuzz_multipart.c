/* Reads arbitrary bytes as a multipart form: the bytes up to a NUL are the Content-Type, the rest
 * is the body. The parts are within the body and in order, none contains the boundary, and a form
 * that is written from the parts reads back equal. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "serve/http/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
wrong(const char *what)
{
	fprintf(stderr, "fuzz_multipart: %s\n", what);
	abort();
}

static void
put_name(Strbuf *b, const char *key, const char *s)
{
	strbuf_printf(b, "; %s=\"", key);
	for (; *s; s++)
		strbuf_printf(b, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
	strbuf_putc(b, '"');
}

/* Writes a form of the parts that were read. Returns false if the type or the body is invalid. */
static bool
again(const char *type, const char *body, size_t n, Strbuf *out)
{
	Multipart m;
	MultipartPart part;
	const char *at = body;
	int more;

	if (!multipart_open(&m, type, body, n))
		return false;
	while ((more = multipart_next(&m, &part)) > 0) {
		if (part.data < at || part.n > (size_t)(body + n - part.data) ||
		    memchr(part.name, 0, sizeof part.name) == NULL ||
		    memchr(part.file, 0, sizeof part.file) == NULL || !part.name[0])
			wrong("a part outside the body");
		if (memmem(part.data, part.n, m.mark, m.n_mark))
			wrong("a part contains the boundary");
		at = part.data + part.n;
		strbuf_add(out, m.mark + 2, m.n_mark - 2);
		strbuf_puts(out, "\r\nContent-Disposition: form-data");
		put_name(out, "name", part.name);
		if (part.is_file)
			put_name(out, "filename", part.file);
		strbuf_puts(out, "\r\n\r\n");
		strbuf_add(out, part.data, part.n);
		strbuf_puts(out, "\r\n");
	}
	strbuf_add(out, m.mark + 2, m.n_mark - 2);
	strbuf_puts(out, "--\r\n");
	return more == 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *nul = memchr(data, 0, size);
	Strbuf one = { 0 }, two = { 0 };

	if (!nul)
		return 0;
	size_t n = size - (size_t)(nul + 1 - data);
	/* the buffer has the exact size, so that the sanitizer reports reads beyond its end */
	char *body = malloc(n + !n);
	memcpy(body, nul + 1, n);
	if (again((const char *)data, body, n, &one) &&
	    (!again((const char *)data, one.data, one.len, &two) || one.len != two.len ||
	     memcmp(one.data, two.data, one.len) != 0))
		wrong("the rewritten form differs");
	strbuf_release(&one);
	strbuf_release(&two);
	free(body);
	return 0;
}
