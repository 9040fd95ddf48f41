/* Single requests: setting up, headers, redirects, and deciding how to continue after an answer.
 *
 * This file follows redirects, not libcurl, so that the token is sent to the endpoint only, and
 * https never becomes http. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "hub/hub.h"

enum { LONGEST_WAIT_S = 60 };

/* ---- headers ---- */

bool
http_same_origin(const char *url, const char *endpoint)
{
	const char *host = strstr(endpoint, "://");

	if (!host)
		return false;
	size_t n = (size_t)(host + 3 - endpoint) + strcspn(host + 3, "/?#");
	return strncasecmp(url, endpoint, n) == 0 && (!url[n] || strchr("/?#", url[n]));
}

static bool
parse_number(const char **p, int64_t *out)
{
	char *end;

	if (**p < '0' || **p > '9')
		return false;
	errno = 0;
	long long x = strtoll(*p, &end, 10);
	*p = end;
	*out = x;
	return errno == 0;
}

bool
http_content_range(const char *s, int64_t *first, int64_t *total)
{
	int64_t last;

	if (strncasecmp(s, "bytes ", 6) != 0)
		return false;
	s += 6;
	*total = -1;
	if (!parse_number(&s, first) || *s++ != '-' || !parse_number(&s, &last) || *s++ != '/' ||
	    last < *first)
		return false;
	if (*s == '*')
		return !s[1];
	return parse_number(&s, total) && !*s && *total > last;
}

const char *
http_next_link(const char *link, Arena *a)
{
	for (const char *p = link; (p = strchr(p, '<')) != NULL; p++) {
		const char *end = strchr(p, '>');
		if (!end)
			return NULL;
		size_t n = strcspn(end, ",");
		const char *rel = strstr(end, "rel=\"next\"");
		if (rel && (size_t)(rel - end) < n)
			return arena_strndup(a, p + 1, (size_t)(end - p - 1));
	}
	return NULL;
}

/* Copy the value of a header, without characters that control a terminal. */
static void
copy_value(char *out, size_t cap, const char *s, size_t n)
{
	size_t len = 0;

	while (n > 0 && strchr(" \t\r\n", s[n - 1]))
		n--;
	for (size_t i = 0; i < n && len + 1 < cap; i++)
		if (s[i] && (len || !strchr(" \t", s[i])))
			out[len++] = s[i];
	out[len] = 0;
	utf8_make_printable(out, false);
}

static size_t
on_header(char *data, size_t one, size_t n, void *user)
{
	HubAnswer *h = user;
	const struct {
		const char *name;
		char *to;
		size_t cap;
	} rows[] = {
		{ "etag:", h->etag, sizeof h->etag },
		{ "x-linked-etag:", h->linked_etag, sizeof h->linked_etag },
		{ "x-error-code:", h->error_code, sizeof h->error_code },
		{ "x-error-message:", h->error_message, sizeof h->error_message },
		{ "link:", h->link, sizeof h->link },
		{ "content-range:", h->content_range, sizeof h->content_range },
		{ "retry-after:", h->retry_after, sizeof h->retry_after },
	};

	n *= one;
	if (n >= 5 &&
	    strncasecmp(data, "HTTP/", 5) == 0) /* a new head: the previous one was a proxy's */
		*h = (HubAnswer){ 0 };
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		size_t len = strlen(rows[i].name);
		if (n <= len || strncasecmp(data, rows[i].name, len) != 0)
			continue;
		copy_value(rows[i].to, rows[i].cap, data + len, n - len);
		if (rows[i].to == h->link)
			h->link_cut = n - len > rows[i].cap;
	}
	return n;
}

/* ---- requests ---- */

static llmc_status
add_header(Hub *h, HubRequest *r, const char *text, llmc_error *err)
{
	void *list = h->curl.slist_append(r->headers, text);

	if (!list)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	r->headers = list;
	return LLMC_OK;
}

void
http_close(Hub *h, HubRequest *r)
{
	if (r->easy)
		h->curl.easy_cleanup(r->easy);
	h->curl.slist_free_all(r->headers);
	r->easy = r->headers = NULL;
}

llmc_status
http_prepare(Hub *h, HubRequest *r, const char *url, const char *extra, llmc_error *err)
{
	const CurlCalls *c = &h->curl;

	http_close(h, r);
	r->head = (HubAnswer){ 0 };
	r->why[0] = 0;
	r->easy = c->easy_init();
	if (!r->easy)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	TRY(add_header(h, r, "Accept-Encoding: identity", err));
	if (h->cfg.token && http_same_origin(url, h->cfg.endpoint))
		TRY(add_header(h, r, arena_printf(h->a, "Authorization: Bearer %s", h->cfg.token),
		               err));
	if (extra)
		TRY(add_header(h, r, extra, err));
	c->easy_setopt(r->easy, CURLOPT_URL, url);
	c->easy_setopt(r->easy, CURLOPT_HTTPHEADER, r->headers);
	c->easy_setopt(r->easy, CURLOPT_USERAGENT, "llmc/" LLMC_VERSION);
	c->easy_setopt(r->easy, CURLOPT_ERRORBUFFER, r->why);
	c->easy_setopt(r->easy, CURLOPT_HEADERFUNCTION, on_header);
	c->easy_setopt(r->easy, CURLOPT_HEADERDATA, &r->head);
	c->easy_setopt(r->easy, CURLOPT_PROTOCOLS, (long)CURLPROTO_HTTP_AND_HTTPS);
	c->easy_setopt(r->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	c->easy_setopt(r->easy, CURLOPT_NOSIGNAL, 1L);
	c->easy_setopt(r->easy, CURLOPT_TCP_KEEPALIVE, 1L);
	c->easy_setopt(r->easy, CURLOPT_CONNECTTIMEOUT, h->cfg.stall_s);
	c->easy_setopt(r->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
	c->easy_setopt(r->easy, CURLOPT_LOW_SPEED_TIME, h->cfg.stall_s);
	if (h->cfg.ca_file)
		c->easy_setopt(r->easy, CURLOPT_CAINFO, h->cfg.ca_file);
	if (h->cfg.ca_dir)
		c->easy_setopt(r->easy, CURLOPT_CAPATH, h->cfg.ca_dir);
	return LLMC_OK;
}

bool
http_may_follow(const char *from, const char *to)
{
	if (strncasecmp(to, "https://", 8) == 0)
		return true;
	return strncasecmp(to, "http://", 7) == 0 && strncasecmp(from, "https://", 8) != 0;
}

llmc_status
http_redirect(Hub *h, HubRequest *r, const char *from, const char **to, llmc_error *err)
{
	const char *url = NULL;

	h->curl.easy_getinfo(r->easy, CURLINFO_REDIRECT_URL, &url);
	if (!url)
		return error_set(err, LLMC_E_IO, "%s: a redirect without an address", from);
	if (!http_may_follow(from, url))
		return error_set(err, LLMC_E_IO,
		                 "%s: the server redirects to %.200s, which is not https", from,
		                 url);
	*to = arena_strdup(h->a, url);
	return LLMC_OK;
}

/* ---- verdicts ---- */

/* Return the seconds of Retry-After, which has a number or a date; -1: none. */
static double
retry_after(const HubAnswer *head)
{
	struct tm t = { 0 };
	const char *s = head->retry_after;
	int64_t n;

	if (parse_number(&s, &n))
		return (double)n;
	if (!strptime(head->retry_after, "%a, %d %b %Y %H:%M:%S", &t))
		return -1;
	double s_left = difftime(timegm(&t), time(NULL));
	return s_left > 0 ? s_left : 0;
}

/* Return the host of a URL, for messages */
static const char *
host_of(Hub *h, const char *url)
{
	const char *p = strstr(url, "://");

	p = p ? p + 3 : url;
	return arena_strndup(h->a, p, strcspn(p, "/?#"));
}

static HubVerdict
transport_failed(Hub *h, const HubRequest *r, int code, const char *url, llmc_error *err)
{
	const char *why = r->why[0] ? r->why : h->curl.easy_strerror(code), *host = host_of(h, url);

	switch (code) {
	case CURLE_SSL_CERTPROBLEM:
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_ISSUER_ERROR:
		error_set(err, LLMC_E_IO,
		          "%s: its TLS certificate cannot be verified: %s. If a private CA signed "
		          "it, name the CA's file with CURL_CA_BUNDLE or SSL_CERT_FILE",
		          host, why);
		break;
	case CURLE_COULDNT_RESOLVE_PROXY:
		error_set(err, LLMC_E_IO,
		          "the proxy for %s has no address: %s; check https_proxy, http_proxy and "
		          "no_proxy",
		          host, why);
		break;
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_COULDNT_CONNECT:
		error_set(err, LLMC_E_IO,
		          "cannot reach %s: %s; check the network and the proxy (https_proxy); "
		          "HF_ENDPOINT names another server",
		          host, why);
		break;
	case CURLE_OPERATION_TIMEDOUT:
		error_set(
		    err, LLMC_E_IO,
		    "%s sent nothing for %ld seconds, %d times; what was received is kept, so "
		    "run the command again (HF_HUB_DOWNLOAD_TIMEOUT sets the seconds)",
		    host, h->cfg.stall_s, HTTP_TRIES);
		break;
	default:
		error_set(err, LLMC_E_IO,
		          "the connection to %s failed: %s; what was received is kept, so run the "
		          "command again",
		          host, why);
		break;
	}
	return HTTP_FAILED;
}

/* Return true if another try may succeed. If the server was never reached, the error is reported at
 * once. */
static bool
is_temporary(int code, bool progressed)
{
	switch (code) {
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_URL_MALFORMAT:
	case CURLE_WRITE_ERROR:
	case CURLE_ABORTED_BY_CALLBACK:
	case CURLE_SSL_CERTPROBLEM:
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_ISSUER_ERROR:
		return false;
	case CURLE_COULDNT_RESOLVE_PROXY:
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_COULDNT_CONNECT:
		return progressed;
	default:
		return true;
	}
}

static HubVerdict
busy_failed(Hub *h, const HubAnswer *head, const char *url, double wait, llmc_error *err)
{
	if (head->status == 429)
		error_set(err, LLMC_E_BUSY,
		          "%s limits the number of requests (429)%s; try again later%s",
		          host_of(h, url),
		          wait > 0 ? arena_printf(h->a, " for the next %.0f seconds", wait) : "",
		          h->cfg.token ? "" : ", or set HF_TOKEN, which has a higher limit");
	else
		error_set(err, LLMC_E_IO,
		          "%s answers %ld%s%s%s; try again later, what was received is kept",
		          host_of(h, url), head->status, *head->error_message ? " (" : "",
		          head->error_message, *head->error_message ? ")" : "");
	return HTTP_FAILED;
}

HubVerdict
http_verdict(Hub *h, HubRequest *r, int code, const char *url, int tries, bool progressed,
             double *wait_s, llmc_error *err)
{
	HubAnswer *head = &r->head;

	*wait_s = 0.3 * (double)(1 << (2 * (tries < 6 ? tries : 6))); /* 0.3, 1.2, 4.8 s */
	head->status = 0;
	h->curl.easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &head->status);
	if (code == CURLE_ABORTED_BY_CALLBACK) {
		hub_cancelled(err);
		return HTTP_FAILED;
	}
	if (code != CURLE_OK) {
		if (is_temporary(code, progressed) && tries + 1 < HTTP_TRIES)
			return HTTP_AGAIN;
		return transport_failed(h, r, code, url, err);
	}
	if (head->status >= 300 && head->status < 400 && head->status != 304)
		return HTTP_REDIRECT;
	if (head->status != 429 && head->status != 408 && head->status < 500)
		return HTTP_DONE;
	double asked = retry_after(head);
	if (asked > LONGEST_WAIT_S || tries + 1 >= HTTP_TRIES)
		return busy_failed(h, head, url, asked, err);
	*wait_s = asked >= 0 ? asked : *wait_s;
	return HTTP_AGAIN;
}

/* ---- GET into memory ---- */

typedef struct Receiver {
	Hub *h;
	Strbuf *out;
	size_t max_bytes;
} Receiver;

static size_t
on_body(char *data, size_t one, size_t n, void *user)
{
	Receiver *r = user;

	n *= one;
	if (n > r->max_bytes - r->out->len)
		return 0;
	strbuf_add(r->out, data, n);
	return r->out->failed ? 0 : n;
}

static int
on_progress(void *user, int64_t a, int64_t b, int64_t c, int64_t d)
{
	Receiver *r = user;

	(void)a, (void)b, (void)c, (void)d;
	return hub_report(r->h, NULL, 0, NULL) ? 0 : 1;
}

static llmc_status
get_once(Hub *h, HubRequest *r, const char *url, Receiver *to, int *code, llmc_error *err)
{
	const CurlCalls *c = &h->curl;

	strbuf_clear(to->out);
	TRY(http_prepare(h, r, url, NULL, err));
	c->easy_setopt(r->easy, CURLOPT_WRITEFUNCTION, on_body);
	c->easy_setopt(r->easy, CURLOPT_WRITEDATA, to);
	c->easy_setopt(r->easy, CURLOPT_NOPROGRESS, 0L);
	c->easy_setopt(r->easy, CURLOPT_XFERINFOFUNCTION, on_progress);
	c->easy_setopt(r->easy, CURLOPT_XFERINFODATA, to);
	*code = c->easy_perform(r->easy);
	if (to->out->failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	if (*code == CURLE_WRITE_ERROR)
		return error_set(err, LLMC_E_IO, "%s: the answer is larger than %zu bytes", url,
		                 to->max_bytes);
	return LLMC_OK;
}

/* A request that the arena closes */
typedef struct HeldRequest {
	Hub *h;
	HubRequest r;
} HeldRequest;

static void
held_close(void *p)
{
	HeldRequest *held = p;

	http_close(held->h, &held->r);
}

llmc_status
http_get(Hub *h, const char *url, size_t max_bytes, Strbuf *out, HubAnswer *head, llmc_error *err)
{
	Receiver to = { h, out, max_bytes };
	llmc_status status = LLMC_OK;

	TRY(hub_curl_open(h, err));
	HeldRequest *held = NEW(h->a, HeldRequest, 1);
	HubRequest *r = &held->r;
	held->h = h;
	arena_defer(h->a, held_close, held);
	for (int tries = 0, redirects = 0; status == LLMC_OK;) {
		int code;
		double wait;
		status = get_once(h, r, url, &to, &code, err);
		if (status != LLMC_OK)
			break;
		HubVerdict v = http_verdict(h, r, code, url, tries, false, &wait, err);
		if (v == HTTP_DONE) {
			*head = r->head;
			break;
		}
		if (v == HTTP_FAILED) {
			status = err->code;
		} else if (v == HTTP_REDIRECT) {
			status = ++redirects > HTTP_REDIRECTS
			             ? error_set(err, LLMC_E_IO, "%s: too many redirects", url)
			             : http_redirect(h, r, url, &url, err);
		} else {
			tries++;
			status = hub_wait(h, wait, err);
		}
	}
	arena_done(h->a, held);
	return status;
}

/* ---- progress ---- */

llmc_status
hub_cancelled(llmc_error *err)
{
	return error_set(err, LLMC_E_CANCELLED,
	                 "stopped; what was received is kept, and the next pull resumes");
}

bool
hub_report(Hub *h, const char *file, int64_t file_bytes, const char *note)
{
	h->state.size = sizeof h->state;
	h->state.file = file;
	h->state.file_bytes = file_bytes;
	h->state.note = note;
	if (h->progress && !h->progress(h->user, &h->state))
		h->cancelled = true;
	return !h->cancelled;
}

llmc_status
hub_wait(Hub *h, double seconds, llmc_error *err)
{
	const double until = clock_now() + seconds;

	do {
		struct timespec t = { .tv_nsec = 50 * 1000 * 1000 };
		if (!hub_report(h, NULL, 0,
		                seconds < 2 ? NULL : "waiting, because the server is busy"))
			return hub_cancelled(err);
		double left = until - clock_now();
		if (left < 0.05 && left > 0)
			t.tv_nsec = (long)(left * 1e9);
		if (left > 0)
			nanosleep(&t, NULL);
	} while (clock_now() < until);
	return LLMC_OK;
}
