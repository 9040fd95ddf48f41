/* Reader of multipart/form-data bodies (RFC 7578). It is as strict as the parser of heads: parts
 * must end with CRLF and the boundary, and names must have no control characters. */
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

/* Begin to read a body. type: value of Content-Type. False: the type is not multipart/form-data, or
 * the body does not begin with its boundary. */
bool multipart_open(Multipart *m, const char *type, const char *data, size_t n);
/* Read the next part. Returns 1 if there is one, 0 if there are no more parts, -1 if the body is
 * malformed. */
int multipart_next(Multipart *m, MultipartPart *out);

#endif
