/* Bodies of multipart/form-data (RFC 7578), from bytes alone. Strict, as heads are: parts end with
 * CRLF and the mark, names are texts without control characters. */
#ifndef LLMC_SERVE_HTTP_MULTIPART_H
#define LLMC_SERVE_HTTP_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

typedef struct MultipartPart {
	char name[64], file[256]; /* file: the name that its sender gives, "" without */
	bool is_file;
	const char *data; /* points into the body */
	size_t n;
} MultipartPart;

typedef struct Multipart {
	const char *at, *end;
	char mark[80]; /* what ends a part: CRLF, two dashes, the boundary */
	size_t n_mark;
} Multipart;

/* type: the Content-Type. False: it is another, or the body does not begin with its boundary. */
bool multipart_open(Multipart *m, const char *type, const char *data, size_t n);
/* 1: a part; 0: that was the last; -1: the body is broken. */
int multipart_next(Multipart *m, MultipartPart *out);

#endif
