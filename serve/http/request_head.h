/* The head of an HTTP/1 request and the framing of its body, from bytes alone.
 *
 * Strict: what two readers might take differently (two lengths, a length beside chunks, two hosts,
 * a bare line feed, a folded line, a space before a colon, a NUL) is refused, so that nothing can
 * be smuggled past a proxy. All limits are here; nothing is kept of a chunk's extension or of
 * trailers. */
#ifndef LLMC_SERVE_HTTP_REQUEST_HEAD_H
#define LLMC_SERVE_HTTP_REQUEST_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	HEAD_MAX = 32768,       /* bytes of a head, the request line included */
	HEAD_TARGET_MAX = 8192, /* bytes of a path with its query */
	HEAD_FIELDS = 100,
	CHUNK_LINE_MAX = 256, /* bytes of a chunk's size with its extensions */
	TRAILER_MAX = 8192,
};

typedef struct HttpError {
	int status; /* 0: none */
	const char *text;
} HttpError;

typedef struct HttpHead {          /* texts point into the bytes that were parsed */
	const char *method, *path; /* path: decoded, without the query */
	const char *query;         /* behind the '?', as it was sent; "": none */
	const char *host;          /* with its port; NULL: HTTP/1.0 that names none */
	bool http10, close; /* close: the client wants no further answer on this connection */
	bool expect;        /* waits for "100 Continue" before it sends the body */
	bool chunked;
	uint64_t length; /* of the body when not chunked */
	int n_fields;
	struct {
		const char *name, *value;
	} field[HEAD_FIELDS];
} HttpHead;

/* How many of the n bytes at s are the head: 0 while it is not whole, -1 when it can be none (e
 * tells). `seen` bytes were there at an earlier call, which returned 0. */
ptrdiff_t head_span(const char *s, size_t n, size_t seen, HttpError *e);
bool head_parse(char *s, size_t n, HttpHead *h,
                HttpError *e); /* s: a whole head; becomes the texts of h */
const char *head_field(const HttpHead *h, const char *name); /* the first of that name, or NULL */
/* A field of the query, decoded; false: it is not there, or longer than out. */
bool head_query(const HttpHead *h, const char *key, char *out, size_t cap);

typedef struct HttpBody { /* where in its body a request is */
	enum {
		BODY_PLAIN,
		BODY_SIZE,
		BODY_EXTENSION,
		BODY_SIZE_LF,
		BODY_CHUNK,
		BODY_CR,
		BODY_LF,
		BODY_TRAILER,
		BODY_OVER
	} at;
	uint64_t left; /* of the plain body, or of the chunk */
	size_t line;   /* bytes of this chunk line, or of the trailers */
	uint32_t last; /* the last four bytes of the trailers */
} HttpBody;

void body_begin(HttpBody *b, const HttpHead *h);
/* Use some of the n > 0 bytes at s; how many is returned, those of the body are then at *data. 0:
 * refused (e tells), or the body is over. */
size_t body_next(HttpBody *b, const char *s, size_t n, const char **data, size_t *n_data,
                 HttpError *e);

#endif
