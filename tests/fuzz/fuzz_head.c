/* Arbitrary bytes from a connection: the head of a request and its body. In chunks (the first
 * byte selects their size) the result is the same as at once, and an accepted request has one
 * meaning. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/http/request_head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
wrong(const char *what)
{
	fprintf(stderr, "fuzz_head: %s\n", what);
	abort();
}

/* Read all of the body that is available: a checksum over the bytes that frame it and its own
 * bytes. */
static size_t
read_body(const HttpHead *h, const char *s, size_t n, size_t step, uint64_t *sum, size_t *n_body,
          HttpError *e)
{
	HttpBody b;
	size_t used = 0;

	*e = (HttpError){ 0 };
	*n_body = 0;
	*sum = 0;
	body_begin(&b, h);
	while (used < n && b.at != BODY_OVER) {
		const char *part;
		size_t n_part, most = n - used < step ? n - used : step,
		               k = body_next(&b, s + used, most, &part, &n_part, e);
		if (e->status)
			break;
		if (k == 0 || k > most || n_part > k ||
		    (n_part && (part < s + used || part + n_part > s + used + k)))
			wrong("a span outside the input");
		for (size_t i = 0; i < n_part; i++)
			*sum = *sum * 31 + (unsigned char)part[i];
		*n_body += n_part;
		used += k;
	}
	return used;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	HttpError whole = { 0 }, pieces = { 0 }, e;
	HttpHead h;
	size_t step = size ? data[0] % 16 + 1 : 1, n = size ? size - 1 : 0, seen = 0, n1, n2;
	char *s = malloc(n + 1);
	uint64_t sum1, sum2;
	ptrdiff_t span = 0, first = 0;

	memcpy(s, data + (size > 0), n);
	s[n] = 0;
	first = n ? head_span(s, n, 0, &whole) : 0;
	for (size_t at = 1; at <= n && span == 0; at = at < n && at + step > n ? n : at + step) {
		span = head_span(s, at, seen, &pieces);
		seen = at;
	}
	if (span > 0 && span != first)
		wrong("a head read in chunks differs");
	if (first <= 0) {
		if (first < 0 && (whole.status < 400 || !whole.text))
			wrong("rejected without a reason");
		free(s);
		return 0;
	}
	char *head = malloc((size_t)first + 1);
	memcpy(head, s, (size_t)first);
	head[first] = 0;
	if (head_parse(head, (size_t)first, &h, &whole)) {
		if (span != first)
			/* rejection may come at an earlier chunk */
			wrong("a head read in chunks differs");
		if ((h.chunked && h.length) || !h.method[0] ||
		    (h.path[0] != '/' && h.path[0] != '*') || (!h.http10 && !h.host))
			wrong("an invalid head is accepted");
		for (int i = 0; i < h.n_fields; i++)
			if (!h.field[i].name[0] || strpbrk(h.field[i].value, "\r\n") ||
			    head_field(&h, h.field[i].name) == NULL)
				wrong("an invalid header field is accepted");
		size_t used1 = read_body(&h, s + first, n - (size_t)first, n + 1, &sum1, &n1, &e);
		int status = e.status;
		size_t used2 = read_body(&h, s + first, n - (size_t)first, step, &sum2, &n2, &e);
		if (status != e.status || (!status && (used1 != used2 || n1 != n2 || sum1 != sum2)))
			wrong("a body read in chunks differs");
		if (!h.chunked && n1 > h.length)
			wrong("a body is longer than its Content-Length");
	} else if (whole.status < 400 || !whole.text) {
		wrong("rejected without a reason");
	}
	free(head);
	free(s);
	return 0;
}
