#include "serve/http/request_head.h"

#include <string.h>
#include <strings.h>

#include "base/number.h"

enum {
	METHOD_MAX = 31,
	/* longest request line */
	FIRST_LINE_MAX = METHOD_MAX + 1 + HEAD_TARGET_MAX + sizeof " HTTP/1.1\r\n" - 1,
};

static bool
refuse(HttpError *e, int status, const char *text)
{
	*e = (HttpError){ status, text };
	return false;
}

/* Report whether c may be part of a method or field name (RFC 9110 token). */
static bool
is_token(unsigned char c)
{
	return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
	       (c && strchr("!#$%&'*+-.^_`|~", c));
}

ptrdiff_t
head_span(const char *s, size_t n, size_t seen, HttpError *e)
{
	/* refuse input that is not HTTP at once, and not only after the timeout */
	for (size_t i = seen; i < n && i < HEAD_MAX; i++) {
		unsigned char c = (unsigned char)s[i];
		if (c == '\n' && (i == 0 || s[i - 1] != '\r')) {
			refuse(e, 400, "A line of the request's head does not end with CR LF.");
			return -1;
		}
		if (c == '\n' && i >= 3 && s[i - 2] == '\n')
			return (ptrdiff_t)i + 1;
		if ((c < 32 && c != '\r' && c != '\n' && c != '\t') || c == 127 ||
		    (i && s[i - 1] == '\r' && c != '\n')) {
			refuse(e, 400,
			       s[0] == 22
			           ? "This server speaks plain HTTP, but the client sent TLS."
			           : "The request's head contains a control character.");
			return -1;
		}
	}
	const size_t start = n <= METHOD_MAX ? n : METHOD_MAX + 1;
	const char *space = memchr(s, ' ', start);
	for (size_t i = 0; i < (space ? (size_t)(space - s) : start); i++)
		if (!is_token((unsigned char)s[i])) {
			refuse(e, 400, "The request does not begin with a method.");
			return -1;
		}
	if (!space && n > METHOD_MAX) {
		refuse(e, 400, "The request does not begin with a method.");
		return -1;
	}
	if (n > FIRST_LINE_MAX && !memchr(s, '\n', FIRST_LINE_MAX)) {
		refuse(e, 414, "The address is longer than 8192 bytes.");
		return -1;
	}
	if (n >= HEAD_MAX) {
		refuse(e, 431, "The request's head is longer than 32768 bytes.");
		return -1;
	}
	return 0;
}

/* Parse METHOD SP target SP HTTP/1.x */
static bool
request_line(char *s, HttpHead *h, char **authority, HttpError *e)
{
	char *target = strchr(s, ' '), *version = target ? strchr(target + 1, ' ') : NULL;

	*authority = NULL;
	h->query = "";
	if (!target || !version || target == s)
		return refuse(
		    e, 400, "The request's first line is not a method, an address and a version.");
	*target++ = *version++ = 0;
	h->method = s;
	for (const char *c = s; *c; c++)
		if (!is_token((unsigned char)*c) || c - s >= METHOD_MAX)
			return refuse(e, 400, "The request does not begin with a method.");
	if (strncmp(version, "HTTP/", 5) != 0 || version[5] < '0' || version[5] > '9' ||
	    version[6] != '.' || version[7] < '0' || version[7] > '9' || version[8])
		return refuse(e, 400,
		              "The request's first line does not end with a version of HTTP.");
	if (version[5] != '1')
		return refuse(e, 505, "This server speaks HTTP/1.1.");
	h->http10 = version[7] == '0';
	for (const char *c = target; *c; c++)
		if ((unsigned char)*c <= 32 || (unsigned char)*c >= 127)
			return refuse(
			    e, 400,
			    "The address contains a character that must be written as %XX.");
	if (strlen(target) > HEAD_TARGET_MAX)
		return refuse(e, 414, "The address is longer than 8192 bytes.");
	if (strncasecmp(target, "http://", 7) == 0) {
		/* absolute form, as sent to proxies; its host overrides the header */
		size_t n = strcspn(target + 7, "/?");
		memmove(target, target + 7, n); /* leave space for a NUL */
		*authority = target;
		target = target + 7 + n;
		(*authority)[n] = 0;
		if (*target != '/') {
			h->path = "/";
			return true;
		}
	}
	if (*target != '/' && strcmp(target, "*") != 0)
		return refuse(e, 400, "The address does not begin with '/'.");
	target[strcspn(target, "#")] = 0;
	char *query = strchr(target, '?');
	if (query) {
		*query = 0;
		h->query = query + 1;
	}
	char *to = target;
	for (const char *c = target; *c; c++) {
		if (*c != '%') {
			*to++ = *c;
			continue;
		}
		int byte = percent_byte(c);
		if (byte <= 0)
			return refuse(e, 400,
			              byte < 0
			                  ? "The address contains a '%' without two hexadecimal "
			                    "digits after it."
			                  : "The address contains a NUL.");
		*to++ = (char)byte;
		c += 2;
	}
	*to = 0;
	h->path = target;
	return true;
}

/* Report whether a list such as "keep-alive, close" contains the word. */
static bool
has_word(const char *list, const char *word)
{
	for (size_t n = strlen(word); *list; list += strcspn(list, ","), list += *list == ',') {
		list += strspn(list, " \t");
		if (strncasecmp(list, word, n) == 0 && strchr(", \t", list[n]))
			return true;
	}
	return false;
}

/* Read the header fields that define host, body length and connection handling. */
static bool
meaning(HttpHead *h, const char *authority, HttpError *e)
{
	const char *length = NULL, *coding = NULL;
	bool keep = false;

	for (int i = 0; i < h->n_fields; i++) {
		const char *name = h->field[i].name, *value = h->field[i].value;
		if (strcasecmp(name, "Host") == 0) {
			if (h->host)
				return refuse(e, 400, "The request has two Host fields.");
			h->host = value;
		} else if (strcasecmp(name, "Content-Length") == 0) {
			if (length)
				return refuse(e, 400, "The request has two Content-Length fields.");
			length = value;
		} else if (strcasecmp(name, "Transfer-Encoding") == 0) {
			if (coding)
				return refuse(e, 400,
				              "The request has two Transfer-Encoding fields.");
			coding = value;
		} else if (strcasecmp(name, "Connection") == 0) {
			h->close |= has_word(value, "close");
			keep |= has_word(value, "keep-alive");
		} else if (strcasecmp(name, "Expect") == 0) {
			if (strcasecmp(value, "100-continue") != 0)
				return refuse(e, 417,
				              "The only supported expectation is '100-continue'.");
			h->expect = !h->http10;
		}
	}
	h->close |= h->http10 && !keep;
	if (!h->host && !h->http10)
		return refuse(e, 400, "The request has no Host field.");
	if (authority)
		h->host = authority;
	if (h->host &&
	    (!*h->host ||
	     h->host[strspn(
	         h->host,
	         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_~:[]%")]))
		return refuse(e, 400, "The Host field does not hold the name of a host.");
	if (length && coding)
		return refuse(e, 400,
		              "The request has both a Content-Length and a Transfer-Encoding.");
	if (coding) {
		if (h->http10)
			return refuse(e, 400, "HTTP/1.0 has no Transfer-Encoding.");
		if (strcasecmp(coding, "chunked") != 0)
			return refuse(e, 501, "The only supported Transfer-Encoding is 'chunked'.");
		h->chunked = true;
	}
	if (length) {
		if (!*length || length[strspn(length, "0123456789")])
			return refuse(e, 400, "The Content-Length is not a non-negative integer.");
		for (; *length; length++) {
			if (h->length > (uint64_t)1 << 58)
				return refuse(e, 413, "The Content-Length is too large.");
			h->length = 10 * h->length + (uint64_t)(*length - '0');
		}
	}
	return true;
}

bool
head_parse(char *s, size_t n, HttpHead *h, HttpError *e)
{
	char *authority = NULL, *end = s + n - 2; /* start of the empty line */

	*h = (HttpHead){ 0 };
	for (char *line = s, *next; line < end; line = next) {
		next = (char *)memchr(line, '\n', (size_t)(end - line)) + 1;
		next[-2] = 0; /* the CR of the line */
		if (line == s) {
			if (!request_line(s, h, &authority, e))
				return false;
			continue;
		}
		char *colon = line, *tail = next - 2;
		while (is_token((unsigned char)*colon))
			colon++;
		if (colon == line || *colon != ':')
			return refuse(
			    e, 400,
			    "A line of the request's head is not a name, a colon and a value.");
		if (h->n_fields == HEAD_FIELDS)
			return refuse(e, 431, "The request's head has more than 100 fields.");
		*colon++ = 0;
		colon += strspn(colon, " \t");
		while (tail > colon && (tail[-1] == ' ' || tail[-1] == '\t'))
			*--tail = 0;
		h->field[h->n_fields].name = line;
		h->field[h->n_fields++].value = colon;
	}
	return meaning(h, authority, e);
}

const char *
head_field(const HttpHead *h, const char *name)
{
	for (int i = 0; i < h->n_fields; i++)
		if (strcasecmp(h->field[i].name, name) == 0)
			return h->field[i].value;
	return NULL;
}

bool
head_query(const HttpHead *h, const char *key, char *out, size_t cap)
{
	const char *q = h->query ? h->query : "";
	size_t n = strlen(key), at = 0;

	for (; *q; q += strcspn(q, "&"), q += *q == '&')
		if (!strncmp(q, key, n) && q[n] == '=') {
			for (q += n + 1; *q && *q != '&' && at + 1 < cap; q++) {
				int byte = percent_byte(q);
				out[at++] = byte >= 0 ? (char)byte : *q == '+' ? ' ' : *q;
				q += byte >= 0 ? 2 : 0;
			}
			out[at] = 0;
			return !*q || *q == '&';
		}
	return false;
}

void
body_begin(HttpBody *b, const HttpHead *h)
{
	*b = (HttpBody){ .at = h->chunked  ? BODY_SIZE
		               : h->length ? BODY_PLAIN
		                           : BODY_OVER,
		         .left = h->length };
}

/* Consume one byte of chunk framing. */
static bool
framing(HttpBody *b, unsigned char c, HttpError *e)
{
	switch (b->at) {
	case BODY_SIZE: {
		int digit = hex_digit(c);
		if (digit < 0 && (b->line == 0 || (c != '\r' && c != ';' && c != ' ' && c != '\t')))
			return refuse(e, 400, "The size of a chunk is not a hexadecimal number.");
		if (digit >= 0 && b->left >> 40)
			return refuse(e, 413, "A chunk's size is too large.");
		if (digit >= 0)
			b->left = b->left << 4 | (unsigned)digit;
		else
			b->at = c == '\r' ? BODY_SIZE_LF : c == ';' ? BODY_EXTENSION : BODY_BLANK;
		break;
	}
	case BODY_BLANK:
		if (c == ' ' || c == '\t')
			break;
		if (c != ';' && c != '\r')
			return refuse(e, 400,
			              "The size of a chunk is followed by other characters.");
		b->at = c == '\r' ? BODY_SIZE_LF : BODY_EXTENSION;
		break;
	case BODY_EXTENSION:
		if ((c < 32 && c != '\r' && c != '\t') || c == 127)
			return refuse(e, 400, "A chunk's extension contains a control character.");
		if (c == '\r')
			b->at = BODY_SIZE_LF;
		break;
	case BODY_SIZE_LF:
		if (c != '\n')
			return refuse(e, 400,
			              "The line of a chunk's size does not end with CR LF.");
		b->at = b->left ? BODY_CHUNK : BODY_TRAILER;
		b->line = 0;
		/* the CRLF after the size is the first of the two that end the trailers */
		b->last = 0x0d0a;
		return true;
	case BODY_CR:
	case BODY_LF:
		if (c != (b->at == BODY_CR ? '\r' : '\n'))
			return refuse(e, 400, "A chunk is longer than its size.");
		b->at = b->at == BODY_CR ? BODY_LF : BODY_SIZE;
		b->line = 0;
		return true;
	case BODY_TRAILER:
		if ((c < 32 && c != '\r' && c != '\n' && c != '\t') || c == 127)
			return refuse(e, 400, "The trailer contains a control character.");
		if ((c == '\n') != ((b->last & 255) == '\r'))
			return refuse(e, 400, "A line of the trailer does not end with CR LF.");
		b->last = b->last << 8 | c;
		if (b->last == 0x0d0a0d0a)
			b->at = BODY_OVER;
		else if (++b->line > TRAILER_MAX)
			return refuse(e, 431, "The trailer is longer than 8192 bytes.");
		return true;
	case BODY_PLAIN:
	case BODY_CHUNK:
	case BODY_OVER:
		return true;
	}
	if (++b->line > CHUNK_LINE_MAX)
		return refuse(e, 400, "The line of a chunk's size is longer than 256 bytes.");
	return true;
}

size_t
body_next(HttpBody *b, const char *s, size_t n, const char **data, size_t *n_data, HttpError *e)
{
	size_t used = 0;

	*data = s;
	*n_data = 0;
	while (used < n && b->at != BODY_PLAIN && b->at != BODY_CHUNK && b->at != BODY_OVER)
		if (!framing(b, (unsigned char)s[used++], e))
			return 0;
	if (used == n || b->at == BODY_OVER)
		return used;
	*data = s + used;
	*n_data = n - used < b->left ? n - used : (size_t)b->left;
	b->left -= *n_data;
	if (b->left == 0)
		b->at = b->at == BODY_PLAIN ? BODY_OVER : BODY_CR;
	return used + *n_data;
}
