/* Access log: one line per request, passed to the caller's log function. */
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "serve/http/api_keys.h"

/* Append text with unsafe characters as \uXXXX and bytes that are not UTF-8 as \xXX. field: escape
 * white space and backslashes as well, so that the text is a single field. */
static void
log_text(Strbuf *b, const char *s, size_t n, bool field)
{
	for (size_t i = 0, len; i < n; i += len) {
		int32_t cp = utf8_next(s + i, n - i, &len);
		bool space = cp == ' ' || cp == 0xa0 || cp == 0x1680 ||
		             (cp >= 0x2000 && cp <= 0x200a) || cp == 0x202f || cp == 0x205f ||
		             cp == 0x3000;
		if (cp < 0)
			for (size_t k = 0; k < len; k++)
				strbuf_printf(b, "\\x%02x", (unsigned)(unsigned char)s[i + k]);
		else if (utf8_is_unsafe(cp) || (field && (space || cp == '\\')))
			strbuf_printf(b, cp > 0xffff ? "\\U%08x" : "\\u%04x", (unsigned)cp);
		else
			strbuf_add(b, s + i, len);
	}
}

void
serve_log(Server *s, int level, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	if (!s->opt.log)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	Strbuf line = { 0 };
	log_text(&line, text, strlen(text), false);
	pthread_mutex_lock(&s->log_lock);
	if (!line.failed)
		s->opt.log(s->opt.log_user, level, strbuf_str(&line));
	pthread_mutex_unlock(&s->log_lock);
	strbuf_release(&line);
}

/* 2026-01-31T12:00:00.123Z */
static void
stamp(char out[40])
{
	struct timespec t;
	struct tm tm;

	clock_gettime(CLOCK_REALTIME, &t);
	gmtime_r(&t.tv_sec, &tm);
	size_t n = strftime(out, 40, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(out + n, 40 - n, ".%03ldZ", t.tv_nsec / 1000000);
}

void
log_request(Req *r)
{
	Server *s = r->srv;
	char when[40];
	Strbuf b = { 0 };

	if (!s->opt.log)
		return;
	stamp(when);
	pthread_mutex_lock(&s->lock);
	bool gone = r->gone;
	int32_t n_prompt = r->n_prompt, n_new = r->n_new;
	int status = r->status;
	const char *finish = r->finish;
	pthread_mutex_unlock(&s->lock);
	double ms = 1000 * (clock_now() - r->t_start);
	if (s->opt.log_json) {
		json_printf(&b,
		            "{\"time\":%s,\"id\":%s,\"client\":%s,\"method\":%s,\"path\":", when,
		            r->id, r->client, r->method);
		json_str(&b, r->path, strlen(r->path));
		strbuf_printf(&b, ",\"status\":%d,\"ms\":%.1f", gone && !status ? 499 : status, ms);
		if (n_prompt || n_new)
			json_printf(&b, ",\"prompt_tokens\":%d,\"new_tokens\":%d,\"finish\":%s",
			            n_prompt, n_new, finish);
		if (r->key)
			json_printf(&b, ",\"key\":%s", r->key->name);
		if (r->trace[0])
			json_printf(&b, ",\"trace\":%s", r->trace);
		strbuf_printf(&b, ",\"gone\":%s}", gone ? "true" : "false");
	} else {
		strbuf_printf(&b, "%s %s %s %s ", when, r->id, r->client, r->method);
		log_text(&b, r->path, strlen(r->path), true);
		strbuf_printf(&b, " %d %.1f ms", gone && !status ? 499 : status, ms);
		if (n_prompt || n_new)
			strbuf_printf(&b, " prompt=%d new=%d finish=%s", n_prompt, n_new,
			              finish ? finish : "-");
		if (r->key)
			strbuf_printf(&b, " key=%s", r->key->name);
		if (gone)
			strbuf_puts(&b, " client-gone");
	}
	if (!b.failed)
		serve_log(s, LLMC_LOG_INFO, "%s", strbuf_str(&b));
	strbuf_release(&b);
}
