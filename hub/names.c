/* Parses names of models, and checks strings from servers that become names of files. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/number.h"
#include "base/text.h"
#include "base/utf8.h"
#include "hub/hub.h"

enum { MAX_PATH_BYTES = 1024, MAX_PART_BYTES = 255 };

bool
hub_is_name(const char *s)
{
	return s && (strncasecmp(s, "hf:", 3) == 0 || strncasecmp(s, "https://", 8) == 0 ||
	             strncasecmp(s, "http://", 7) == 0 || text_after_hub(s));
}

bool
hub_is_hex(const char *s, size_t n)
{
	return s && strlen(s) == n && strspn(s, "0123456789abcdef") == n;
}

bool
hub_path_is_safe(const char *path)
{
	size_t n = strlen(path);

	if (n == 0 || n > MAX_PATH_BYTES)
		return false;
	for (size_t i = 0, len; i < n; i += len)
		if (utf8_is_unsafe(utf8_next(path + i, n - i, &len)) || path[i] == '\\')
			return false;
	for (const char *p = path;; p++) {
		size_t len = strcspn(p, "/");
		if (len == 0 || len > MAX_PART_BYTES || (len == 1 && p[0] == '.') ||
		    (len == 2 && p[0] == '.' && p[1] == '.'))
			return false;
		p += len;
		if (!*p)
			return true;
	}
}

void
hub_url_add(Strbuf *b, const char *s, bool keep_slash)
{
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;
		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		    strchr("-._~", c) || (keep_slash && c == '/'))
			strbuf_putc(b, (char)c);
		else
			strbuf_printf(b, "%%%02X", c);
	}
}

/* Decode %XX; NULL: a NUL among them. */
static const char *
url_decoded(const char *s, size_t n, Arena *a)
{
	char *out = NEW(a, char, n + 1);
	size_t len = 0;

	for (size_t i = 0; i < n; i++) {
		int byte = i + 2 < n ? percent_byte(s + i) : -1;
		out[len++] = byte >= 0 ? (char)byte : s[i];
		if (!out[len - 1])
			return NULL;
		i += byte >= 0 ? 2 : 0;
	}
	return out;
}

const char *
hub_url_file(const char *url, Arena *a)
{
	const char *p = strstr(url, "://"), *from = p ? strchr(p + 3, '/') : NULL;

	if (!from)
		return NULL;
	size_t n = strcspn(from, "?#");
	while (n > 0 && memchr(from, '/', n)) {
		const char *slash = memchr(from, '/', n);
		n -= (size_t)(slash + 1 - from);
		from = slash + 1;
	}
	const char *name = url_decoded(from, n, a);
	return name && hub_path_is_safe(name) && !strchr(name, '/') && name[0] != '.' ? name : NULL;
}

/* True for one part of a repository's name: letters, digits, '-', '_' and '.', as the Hub allows.
 */
static bool
is_repo_part(const char *s, size_t n)
{
	if (n == 0 || n > 96 || s[0] == '.' || s[0] == '-' || s[n - 1] == '.' || s[n - 1] == '-')
		return false;
	for (size_t i = 0; i < n; i++) {
		char c = s[i];
		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		      c == '-' || c == '_' || c == '.'))
			return false;
		if (i && s[i - 1] == c && (c == '-' || c == '.'))
			return false;
	}
	return true;
}

static llmc_status
not_a_name(const char *text, const char *why, llmc_error *err)
{
	return error_set(err, LLMC_E_INPUT,
	                 "%s: %s; expected hf:ORG/REPO, hf:ORG/REPO:QUANT, hf:ORG/REPO:FILE or "
	                 "hf:ORG/REPO@REVISION",
	                 text, why);
}

/* Parse ORG/REPO[@REVISION][/FILE or :QUANT or :FILE]. */
static llmc_status
parse_repo(const char *s, Arena *a, HubName *out, llmc_error *err)
{
	size_t n = strcspn(s, ":@"), org = strcspn(s, "/:@");
	const char *rest = s + n;

	if (s[org] == '/') { /* ORG/REPO/FILE is ORG/REPO:FILE */
		size_t repo = strcspn(s + org + 1, "/:@");
		if (s[org + 1 + repo] == '/') {
			n = org + 1 + repo;
			out->want = arena_strdup(a, s + n + 1);
			rest = "";
		}
	}
	out->repo = arena_strndup(a, s, n);
	bool ok = s[org] != '/' ? is_repo_part(s, n)
	                        : is_repo_part(s, org) &&
	                              is_repo_part(s + org + 1, n - (s[org] == '/' ? org + 1 : 0));
	if (!ok)
		return not_a_name(out->text, "not the name of a repository", err);
	if (*rest == '@') {
		size_t len = strcspn(rest + 1, ":");
		out->revision = arena_strndup(a, rest + 1, len);
		rest += 1 + len;
		if (!hub_path_is_safe(out->revision))
			return not_a_name(out->text, "not the name of a revision", err);
	}
	if (*rest == ':')
		out->want = arena_strdup(a, rest + 1);
	if (out->want && !hub_path_is_safe(out->want))
		return not_a_name(out->text, "not the name of a quantisation or a file", err);
	return LLMC_OK;
}

/* Parse an address below the endpoint: /ORG/REPO, /ORG/REPO/tree/REVISION, or
 * /ORG/REPO/{resolve,blob}/REVISION/FILE. False: another page. */
static bool
parse_page(const char *path, Arena *a, HubName *out)
{
	const char *part[5] = { 0 };
	size_t n = 0;
	const char *decoded = url_decoded(path, strcspn(path, "?#"), a);

	for (const char *p = decoded; p && *p && n < 5; n++) {
		size_t len = n == 4 ? strlen(p) : strcspn(p, "/");
		part[n] = arena_strndup(a, p, len);
		p += len + (p[len] == '/');
	}
	if (n < 2 || !is_repo_part(part[0], strlen(part[0])) ||
	    !is_repo_part(part[1], strlen(part[1])) || !strcmp(part[0], "datasets") ||
	    !strcmp(part[0], "spaces") || !strcmp(part[0], "api"))
		return false;
	bool file = n == 5 && (!strcmp(part[2], "resolve") || !strcmp(part[2], "blob")),
	     tree = n == 4 && !strcmp(part[2], "tree");
	if (n != 2 && !file && !tree)
		return false;
	if ((n > 2 && !hub_path_is_safe(part[3])) || (file && !hub_path_is_safe(part[4])))
		return false;
	out->repo = arena_printf(a, "%s/%s", part[0], part[1]);
	out->revision = n > 2 ? part[3] : out->revision;
	out->want = file ? part[4] : NULL;
	return true;
}

llmc_status
hub_name_parse(const char *text, const char *endpoint, Arena *a, HubName *out, llmc_error *err)
{
	*out = (HubName){ .text = arena_strdup(a, text), .revision = "main" };
	text = out->text;
	if (strncasecmp(text, "hf:", 3) == 0)
		return parse_repo(text + (strncmp(text + 3, "//", 2) == 0 ? 5 : 3), a, out, err);
	const char *repo = text_after_hub(text);
	if (repo)
		return parse_page(repo, a, out) ? LLMC_OK : parse_repo(repo, a, out, err);
	if (strncasecmp(text, "https://hf.co/", 14) == 0 && parse_page(text + 14, a, out))
		return LLMC_OK; /* hf.co, the short address of the Hub */
	const size_t n = strlen(endpoint);
	if (http_same_origin(text, endpoint) && strncmp(text, endpoint, n) == 0 && text[n] == '/' &&
	    parse_page(text + n + 1, a, out))
		return LLMC_OK;
	const char *file = hub_url_file(text, a);
	if (!file || !(ends_with(file, ".gguf") || ends_with(file, ".flm")))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the address of a model must end in the name of a .gguf or "
		                 ".flm file; a model of several files has a name such as "
		                 "hf:ORG/REPO",
		                 text);
	if (strpbrk(text, " \t\r\n") || strlen(text) > 4096)
		return error_set(err, LLMC_E_INPUT, "%.80s: not an address", text);
	out->url = text;
	return LLMC_OK;
}
