/* See multipart.h. */
#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "serve/http/multipart.h"

enum { MAX_PART_HEAD = 8192, MAX_BOUNDARY = 70 };

/* Copy the parameter `key` of a header value: a token or a quoted string. False: absent, longer
 * than out or not printable. */
static bool
parameter(const char *s, size_t n, const char *key, char *out, size_t cap)
{
	size_t i = 0, k = strlen(key);

	while (i < n && s[i] != ';')
		i++;
	while (i < n) {
		for (i++; i < n && (s[i] == ' ' || s[i] == '\t'); i++)
			;
		bool ours = n - i > k && strncasecmp(s + i, key, k) == 0 && s[i + k] == '=';
		for (; i < n && s[i] != '=' && s[i] != ';'; i++)
			;
		size_t len = 0;
		bool fits = true, quoted = i + 1 < n && s[i] == '=' && s[i + 1] == '"';
		if (i < n && s[i] == '=')
			i += 1 + quoted;
		for (; i < n && (quoted ? s[i] != '"' : s[i] != ';'); i++) {
			i += quoted && s[i] == '\\' && i + 1 < n &&
			     (s[i + 1] == '"' || s[i + 1] == '\\');
			fits &= (uint8_t)s[i] >= 0x20 && s[i] != 0x7F;
			if (ours && len + 1 < cap)
				out[len++] = s[i];
			else
				fits &= !ours;
		}
		if (quoted && i == n)
			return false; /* unterminated string */
		if (ours) {
			out[len] = 0;
			return fits;
		}
		for (; i < n && s[i] != ';'; i++)
			;
	}
	return false;
}

bool
multipart_open(Multipart *m, const char *type, const char *data, size_t n)
{
	static const char form[] = "multipart/form-data";
	char boundary[MAX_BOUNDARY + 1];

	if (!type || strncasecmp(type, form, sizeof form - 1) != 0 ||
	    !parameter(type, strlen(type), "boundary", boundary, sizeof boundary) || !*boundary)
		return false;
	m->n_mark = 4 + strlen(boundary);
	memcpy(m->mark, "\r\n--", 4);
	memcpy(m->mark + 4, boundary, m->n_mark - 4 + 1);
	m->at = data;
	m->end = data + n;
	if (n < m->n_mark - 2 || memcmp(data, m->mark + 2, m->n_mark - 2) != 0)
		return false;
	m->at += m->n_mark - 2; /* `at` is now at the CRLF or "--" after the mark */
	return true;
}

/* Read one line of a part's head, without its line end. */
static bool
read_field(MultipartPart *out, const char *s, size_t n)
{
	static const char name[] = "content-disposition:";

	if (n < sizeof name - 1 || strncasecmp(s, name, sizeof name - 1) != 0)
		return true;
	s += sizeof name - 1;
	n -= sizeof name - 1;
	for (; n && (*s == ' ' || *s == '\t'); s++)
		n--;
	if (n < 9 || strncasecmp(s, "form-data", 9) != 0 ||
	    !parameter(s, n, "name", out->name, sizeof out->name))
		return false;
	out->is_file = parameter(s, n, "filename", out->file, sizeof out->file);
	return true;
}

int
multipart_next(Multipart *m, MultipartPart *out)
{
	*out = (MultipartPart){ 0 };
	if (m->end - m->at >= 2 && memcmp(m->at, "--", 2) == 0)
		return 0;
	if (m->end - m->at < 2 || memcmp(m->at, "\r\n", 2) != 0)
		return -1;
	const char *head = m->at + 2;
	for (;;) {
		size_t left = (size_t)(m->end - head);
		const char *line =
		    memmem(head, left < MAX_PART_HEAD ? left : MAX_PART_HEAD, "\r\n", 2);
		if (!line || line - m->at > MAX_PART_HEAD)
			return -1;
		size_t n = (size_t)(line - head);
		if (n && !read_field(out, head, n))
			return -1;
		head = line + 2;
		if (!n)
			break;
	}
	/* the mark of an empty part overlaps the end of the head */
	const char *from = head - 2,
	           *mark = memmem(from, (size_t)(m->end - from), m->mark, m->n_mark);
	if (!mark || !out->name[0])
		return -1;
	out->data = head;
	out->n = mark < head ? 0 : (size_t)(mark - head);
	m->at = mark + m->n_mark;
	return 1;
}
