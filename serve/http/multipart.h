/* Reader of multipart/form-data bodies (RFC 7578). Strict, as for heads: parts end with CRLF and
 * the mark, names have no control characters. */
#ifndef LLMC_SERVE_HTTP_MULTIPART_H
#define LLMC_SERVE_HTTP_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

typedef struct MultipartPart {
	char name[64], file[256]; /* file: file name given by the client, "" if absent */
	bool is_file;
	const char *data; /* points into the body */
	size_t n;
} MultipartPart;

typedef struct Multipart {
	const char *at, *end;
	char mark[80]; /* end of a part: CRLF, two dashes, the boundary */
	size_t n_mark;
} Multipart;

/* type: the Content-Type. False: another type, or the body does not begin with its boundary. */
bool multipart_open(Multipart *m, const char *type, const char *data, size_t n);
/* Returns 1: a part; 0: no more parts; -1: malformed body. */
int multipart_next(Multipart *m, MultipartPart *out);

#endif
