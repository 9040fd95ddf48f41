/* Parser of HTTP/1 request heads and body framing.
 *
 * It is strict, to prevent request smuggling: it refuses heads that two parsers might read
 * differently. Examples are two lengths, a length with chunks, two hosts, a bare line feed, a
 * folded line, a space before a colon, a NUL. All limits are defined here. Chunk extensions and
 * trailers are discarded. */
#ifndef LLMC_SERVE_HTTP_REQUEST_HEAD_H
#define LLMC_SERVE_HTTP_REQUEST_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	HEAD_MAX = 32768,       /* bytes of a head, including the request line */
	HEAD_TARGET_MAX = 8192, /* bytes of a path with its query */
	HEAD_FIELDS = 100,
	CHUNK_LINE_MAX = 256, /* bytes of a chunk size line with extensions */
	TRAILER_MAX = 8192,
};

typedef struct HttpError {
	int status; /* 0: no error */
	const char *text;
} HttpError;

typedef struct HttpHead {          /* strings point into the parsed bytes */
	const char *method, *path; /* path: decoded, without the query */
	const char *query;         /* raw text after '?'; "": none */
	const char *host;          /* with port; NULL: HTTP/1.0 without a host */
	bool http10, close; /* close: the client wants no further answer on this connection */
	bool expect;        /* the client waits for "100 Continue" before it sends the body */
	bool chunked;
	uint64_t length; /* bytes of a body that is not chunked */
	int n_fields;
	struct {
		const char *name, *value;
	} field[HEAD_FIELDS];
} HttpHead;

/* Return the length of the head in the n bytes at s: 0 while incomplete, -1 if malformed (see e).
 * `seen`: number of bytes in an earlier call that returned 0. */
ptrdiff_t head_span(const char *s, size_t n, size_t seen, HttpError *e);
/* s: a complete head, which is modified; the strings of h point into it */
bool head_parse(char *s, size_t n, HttpHead *h, HttpError *e);
const char *head_field(const HttpHead *h, const char *name); /* first field of that name, or NULL */
/* Copy a decoded field of the query; false: absent, or longer than out. */
bool head_query(const HttpHead *h, const char *key, char *out, size_t cap);

typedef struct HttpBody { /* parser state of a body */
	enum {
		BODY_PLAIN,
		BODY_SIZE,
		BODY_BLANK, /* between the size of a chunk and its extension */
		BODY_EXTENSION,
		BODY_SIZE_LF,
		BODY_CHUNK,
		BODY_CR,
		BODY_LF,
		BODY_TRAILER,
		BODY_OVER
	} at;
	uint64_t left; /* bytes left of the plain body or of the chunk */
	size_t line;   /* bytes so far of this chunk line or of the trailers */
	uint32_t last; /* last four bytes of the trailers */
} HttpBody;

void body_begin(HttpBody *b, const HttpHead *h);
/* Consume some of the n > 0 bytes at s and return their number; body bytes among them are at *data.
 * 0: malformed (see e), or the body is over. */
size_t body_next(HttpBody *b, const char *s, size_t n, const char **data, size_t *n_data,
                 HttpError *e);

#endif
