/* Fetches URLs that a third party has chosen (llmc_fetch). Such a URL must not make the server
 * reach private networks:
 *
 *   - the host is in a list of the operator, at every redirect,
 *   - the URL has no part that two parsers could read differently,
 *   - the address is checked when its socket is made, so a name that resolves to another address
 *     between check and use (DNS rebinding) gains nothing,
 *   - no proxy is used, because a proxy would resolve the name itself. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "hub/hub.h"

enum { MAX_URL = 4096, MAX_HOST = 255, REDIRECTS = 3, CURL_SOCKET_BAD = -1 };

/* libcurl's struct curl_sockaddr */
typedef struct CurlAddress {
	int family, socktype, protocol;
	unsigned int n;
	struct sockaddr addr;
} CurlAddress;

/* ---- addresses ---- */

typedef struct Block4 {
	uint32_t net;
	int bits;
} Block4;

/* Special-purpose addresses of RFC 6890 and its successors, multicast and reserved ones */
static const Block4 private4[] = {
	{ 0x00000000, 8 },  { 0x0a000000, 8 },  { 0x64400000, 10 }, { 0x7f000000, 8 },
	{ 0xa9fe0000, 16 }, { 0xac100000, 12 }, { 0xc0000000, 24 }, { 0xc0000200, 24 },
	{ 0xc0586300, 24 }, { 0xc0a80000, 16 }, { 0xc6120000, 15 }, { 0xc6336400, 24 },
	{ 0xcb007100, 24 }, { 0xe0000000, 3 },
};

static bool
is_public4(uint32_t a)
{
	for (size_t i = 0; i < sizeof private4 / sizeof *private4; i++)
		if (!((a ^ private4[i].net) >> (32 - private4[i].bits)))
			return false;
	return true;
}

/* Is the IPv6 address public? True for 2000::/3 without Teredo and other special ranges,
 * documentation and 6to4. A mapped IPv4 address is checked as IPv4 */
static bool
is_public6(const unsigned char a[16])
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };

	if (memcmp(a, mapped, sizeof mapped) == 0)
		return is_public4((uint32_t)a[12] << 24 | (uint32_t)a[13] << 16 |
		                  (uint32_t)a[14] << 8 | a[15]);
	if ((a[0] & 0xe0) != 0x20)
		return false;
	if (a[0] == 0x20 && a[1] == 0x02)
		return false;
	if (a[0] == 0x20 && a[1] == 0x01 && (a[2] < 2 || (a[2] == 0x0d && a[3] == 0xb8)))
		return false;
	return !(a[0] == 0x3f && a[1] == 0xff);
}

bool
fetch_is_public(const struct sockaddr *a)
{
	if (a->sa_family == AF_INET)
		return is_public4(
		    ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr));
	return a->sa_family == AF_INET6 &&
	       is_public6(((const struct sockaddr_in6 *)(const void *)a)->sin6_addr.s6_addr);
}

/* ---- URLs ---- */

typedef struct FetchUrl {
	char host[MAX_HOST + 1]; /* without brackets */
	int port;
	bool numeric;
} FetchUrl;

static llmc_status
bad_url(const char *url, const char *why, llmc_error *err)
{
	return error_set(err, LLMC_E_INPUT, "The URL '%.200s' %s.", url, why);
}

static bool
read_port(const char *s, const char *end, int *port)
{
	int n = 0;

	for (; s < end && *s >= '0' && *s <= '9' && n < 65536; s++)
		n = 10 * n + (*s - '0');
	*port = n;
	return s == end && n > 0 && n < 65536;
}

/* Parse host and port of a URL. Anything unusual is refused. */
static llmc_status
parse_url(const char *url, FetchUrl *out, llmc_error *err)
{
	const bool https = strncasecmp(url, "https://", 8) == 0;
	struct in_addr a4;
	struct in6_addr a6;

	*out = (FetchUrl){ .port = https ? 443 : 80 };
	if (!https && strncasecmp(url, "http://", 7) != 0)
		return bad_url(url, "does not begin with http:// or https://", err);
	const char *host = url + (https ? 8 : 7), *end = host + strcspn(host, "/?#"), *p;
	if (strlen(url) > MAX_URL)
		return bad_url(url, "is longer than 4096 bytes", err);
	for (const char *c = url; *c; c++)
		if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7f || *c == '\\')
			return bad_url(url, "has a character that must be encoded", err);
	if (*host == '[') {
		p = memchr(host, ']', (size_t)(end - host));
		if (!p || p - host - 1 > MAX_HOST)
			return bad_url(url, "has no valid host", err);
		memcpy(out->host, host + 1, (size_t)(p - host - 1));
		p++;
		if (inet_pton(AF_INET6, out->host, &a6) != 1)
			return bad_url(url, "has no valid host", err);
		out->numeric = true;
	} else {
		p = host + strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
		                        "0123456789.-");
		if (p == host || p - host > MAX_HOST)
			return bad_url(url, "has no valid host", err);
		memcpy(out->host, host, (size_t)(p - host));
		out->numeric = inet_pton(AF_INET, out->host, &a4) == 1;
	}
	if (p < end && (*p != ':' || !read_port(p + 1, end, &out->port)))
		return bad_url(url, "has no valid host and port", err);
	return LLMC_OK;
}

/* Does an entry of the list allow the URL? *exact: the entry is the host's numeric address. */
static bool
entry_allows(const char *entry, size_t n, const FetchUrl *u, bool *exact)
{
	const char *colon = memrchr(entry, ':', n);
	const char *bracket = memrchr(entry, ']', n);
	size_t len = n;
	int port = 0;

	if (colon && (!bracket || colon > bracket)) {
		if (!read_port(colon + 1, entry + n, &port))
			return false;
		len = (size_t)(colon - entry);
	}
	if (port ? port != u->port : u->port != 80 && u->port != 443)
		return false;
	if (bracket && len >= 2 && *entry == '[') {
		entry++;
		len -= 2;
	}
	const size_t host = strlen(u->host);
	*exact = false;
	if (len == 1 && *entry == '*')
		return true;
	if (len > 2 && entry[0] == '*' && entry[1] == '.') /* a.b.c matches *.b.c */
		return !u->numeric && host > len - 1 &&
		       strncasecmp(u->host + host - (len - 1), entry + 1, len - 1) == 0;
	*exact = u->numeric;
	return len == host && strncasecmp(entry, u->host, len) == 0;
}

llmc_status
fetch_check_url(const char *url, const char *hosts, bool *exact, llmc_error *err)
{
	FetchUrl u;
	bool allowed = false;
	size_t len;

	*exact = false;
	TRY(parse_url(url, &u, err));
	for (const char *at; (at = text_item(&hosts, &len)) != NULL;) {
		bool same;
		if (!entry_allows(at, len, &u, &same))
			continue;
		allowed = true;
		*exact |= same;
	}
	return allowed ? LLMC_OK
	               : error_set(err, LLMC_E_INPUT,
	                           "The host %.255s, port %d, is not one that files may be "
	                           "fetched from.",
	                           u.host, u.port);
}

/* ---- the request ---- */

typedef struct Fetch {
	const llmc_fetch_options *opt;
	Strbuf *out;
	size_t max_bytes;
	bool exact; /* the operator's list has this very address */
	bool is_private, too_large, stopped;
} Fetch;

static int
on_socket(void *user, int purpose, CurlAddress *a)
{
	Fetch *f = user;

	(void)purpose;
	if (!f->exact && !fetch_is_public(&a->addr)) {
		f->is_private = true;
		return CURL_SOCKET_BAD;
	}
	return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static size_t
on_data(char *data, size_t one, size_t n, void *user)
{
	Fetch *f = user;

	n *= one;
	f->too_large = n > f->max_bytes - f->out->len;
	if (f->too_large)
		return 0;
	strbuf_add(f->out, data, n);
	return f->out->failed ? 0 : n;
}

static int
on_time(void *user, int64_t a, int64_t b, int64_t c, int64_t d)
{
	Fetch *f = user;

	(void)a, (void)b, (void)c, (void)d;
	f->stopped = f->opt->go_on && !f->opt->go_on(f->opt->user);
	return f->stopped;
}

static llmc_status
failed(const Fetch *f, Hub *h, const HubRequest *r, int code, const char *url, llmc_error *err)
{
	if (f->stopped)
		return error_set(err, LLMC_E_CANCELLED, "the file is no longer needed");
	if (f->out->failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	if (f->too_large)
		return error_set(err, LLMC_E_INPUT,
		                 "The file of the URL '%.200s' has more than %zu bytes.", url,
		                 f->max_bytes);
	if (f->is_private)
		return bad_url(url, "leads to an address that is not public", err);
	if (code == CURLE_OPERATION_TIMEDOUT)
		return error_set(err, LLMC_E_IO,
		                 "The URL '%.200s' was not fetched within %.0f seconds.", url,
		                 f->opt->timeout_s);
	return error_set(err, LLMC_E_IO, "The URL '%.200s' cannot be fetched: %.200s.", url,
	                 r->why[0] ? r->why : h->curl.easy_strerror(code));
}

static llmc_status
get(Hub *h, HubRequest *r, Fetch *f, const char *url, double until, llmc_error *err)
{
	const CurlCalls *c = &h->curl;
	const double left = until - clock_now();

	strbuf_clear(f->out);
	TRY(http_prepare(h, r, url, NULL, err));
	c->easy_setopt(r->easy, CURLOPT_PROXY, "");
	c->easy_setopt(r->easy, CURLOPT_TIMEOUT_MS, left > 1e-3 ? (long)(left * 1000) : 1L);
	c->easy_setopt(r->easy, CURLOPT_OPENSOCKETFUNCTION, on_socket);
	c->easy_setopt(r->easy, CURLOPT_OPENSOCKETDATA, f);
	c->easy_setopt(r->easy, CURLOPT_WRITEFUNCTION, on_data);
	c->easy_setopt(r->easy, CURLOPT_WRITEDATA, f);
	c->easy_setopt(r->easy, CURLOPT_NOPROGRESS, 0L);
	c->easy_setopt(r->easy, CURLOPT_XFERINFOFUNCTION, on_time);
	c->easy_setopt(r->easy, CURLOPT_XFERINFODATA, f);
	const int code = c->easy_perform(r->easy);
	return code == CURLE_OK ? LLMC_OK : failed(f, h, r, code, url, err);
}

llmc_status
hub_fetch(Hub *h, const char *url, const llmc_fetch_options *opt, Strbuf *out, llmc_error *err)
{
	const double until = clock_now() + opt->timeout_s;
	Fetch f = { .opt = opt, .out = out, .max_bytes = (size_t)opt->max_bytes };
	HubRequest r = { 0 };
	llmc_status status = hub_curl_open(h, err);

	for (int redirects = 0; status == LLMC_OK;) {
		long code = 0;
		status = fetch_check_url(url, opt->hosts, &f.exact, err);
		if (status == LLMC_OK)
			status = get(h, &r, &f, url, until, err);
		if (status != LLMC_OK)
			break;
		h->curl.easy_getinfo(r.easy, CURLINFO_RESPONSE_CODE, &code);
		if (code == 200)
			break;
		if (code < 300 || code >= 400)
			status =
			    error_set(err, LLMC_E_IO, "The URL '%.200s' answers %ld.", url, code);
		else if (redirects++ == REDIRECTS)
			status = error_set(err, LLMC_E_IO,
			                   "The URL '%.200s' redirects more than %d times.", url,
			                   REDIRECTS);
		else
			status = http_redirect(h, &r, url, &url, err);
	}
	if (h->curl_open)
		http_close(h, &r);
	return status;
}
