/* Reads and checks the lines of a batch: see batch.h. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "serve/batch/batch.h"
#include "serve/batch/batch_run.h"

void
batch_wrong(BatchRun *run, size_t line, const char *code, const char *param, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	text[utf8_whole(text, strlen(text))] = 0;
	if (!run->errors)
		run->errors = json_array();
	if (run->n_wrong++ >= MAX_ERRORS)
		return;
	json_t *e = json_pack("{s:s, s:s, s:s?}", "code", code, "message", text, "param", param);
	if (e)
		json_object_set_new(e, "line", line ? json_integer((json_int_t)line) : json_null());
	json_array_append_new(run->errors, e);
}

bool
batch_value_span(const char *s, size_t n, const char *key, const char **at, size_t *len)
{
	size_t k = strlen(key), from = 0;
	int depth = 0;
	bool ours = false, found = false;

	for (size_t i = 0; i < n; i++) {
		if (s[i] == '"') {
			size_t begin = ++i;
			while (i < n && s[i] != '"')
				i += s[i] == '\\' ? 2 : 1;
			size_t colon = i + 1;
			while (colon < n && strchr(" \t\r", s[colon]))
				colon++;
			if (depth == 1 && colon < n && s[colon] == ':' && !from) {
				if (memchr(s + begin, '\\', i - begin))
					return false;
				ours = i - begin == k && memcmp(s + begin, key, k) == 0;
				from = colon + 1;
				i = colon;
			}
		} else if (s[i] == '{' || s[i] == '[') {
			depth++;
		} else if (s[i] == '}' || s[i] == ']' || s[i] == ',') {
			depth -= s[i] != ',';
			if (from && ((s[i] == ',' && depth == 1) || !depth)) {
				/* do not stop: the last of equal keys counts, as for the parser */
				if (ours) {
					*at = s + from;
					*len = i - from;
					found = true;
				}
				from = 0;
			}
		}
	}
	return found;
}

json_t *
batch_line_object(const BatchRun *run, size_t i, Problem *p)
{
	json_t *o = body_parse((const char *)run->in.data + run->line[i].at, run->line[i].n, p);

	if (o && !json_is_object(o)) {
		problem(p, 400, NULL, "the line is %s, expected an object", json_type_name(o));
		json_decref(o);
		o = NULL;
	}
	return o;
}

static void
batch_check_line(BatchRun *run, size_t i)
{
	Problem p = { 0 };
	const Server *srv = run->st->srv;
	const char *text = (const char *)run->in.data + run->line[i].at;
	size_t most = srv->max_body + MORE_THAN_BODY;

	if (run->line[i].n > most || body_cost(text, run->line[i].n) > srv->max_held) {
		batch_wrong(
		    run, i + 1, "invalid_value", NULL,
		    "This line has more than %zu bytes, or too many values for this server.", most);
		return;
	}
	json_t *o = batch_line_object(run, i, &p);
	const char *name = json_string_of(o, "custom_id"), *method = json_string_of(o, "method"),
	           *url = json_string_of(o, "url"), *at;
	const json_t *body = json_object_get(o, "body");
	size_t n = json_string_length(json_object_get(o, "custom_id")), len;

	if (!o)
		batch_wrong(run, i + 1, "invalid_json_line", NULL,
		            "This line is not parseable as valid JSON: %s", p.text);
	else if (!name || !n)
		batch_wrong(run, i + 1, "missing_required_parameter", "custom_id",
		            "'custom_id' is missing: a string that is unique in the file.");
	else if (n > MAX_NAME || n != strlen(name))
		batch_wrong(run, i + 1, "invalid_value", "custom_id",
		            "The 'custom_id' is longer than %d bytes, or contains a NUL.",
		            MAX_NAME);
	else if (json_object_get(run->names, name))
		batch_wrong(run, i + 1, "duplicate_custom_id", "custom_id",
		            "The 'custom_id' '%.*s' is also that of line %lld.",
		            (int)utf8_whole(name, n < 64 ? n : 64), name,
		            (long long)json_integer_value(json_object_get(run->names, name)) + 1);
	else if (!method || strcmp(method, "POST") != 0)
		batch_wrong(run, i + 1, "invalid_method", "method", "The 'method' must be POST.");
	else if (!url || strcmp(url, run->b->endpoint) != 0)
		batch_wrong(run, i + 1, "mismatched_url", "url",
		            "The 'url' must be the batch's endpoint, %s.", run->b->endpoint);
	else if (!json_is_object(body) ||
	         !batch_value_span(text, run->line[i].n, "body", &at, &len))
		batch_wrong(
		    run, i + 1, "invalid_type", "body",
		    "The 'body' must be an object: the request. Field names of the line must not "
		    "have escapes.");
	else if (len > srv->max_body)
		batch_wrong(run, i + 1, "invalid_value", "body",
		            "The 'body' has more than %zu bytes, the server's --max-body-size.",
		            srv->max_body);
	else if (json_is_true(json_object_get(body, "stream")))
		batch_wrong(run, i + 1, "invalid_value", "body.stream",
		            "'stream' is not supported in a batch.");
	else if (json_object_set_new(run->names, name, json_integer((json_int_t)i)) != 0)
		batch_wrong(run, i + 1, "server_error", NULL, "The server is out of memory.");
	json_decref(o);
}

static bool
batch_halted(BatchRun *run)
{
	pthread_mutex_lock(&run->st->lock);
	bool halt = run->st->stop;
	pthread_mutex_unlock(&run->st->lock);
	return halt;
}

/* Index the lines that are not blank. */
static bool
batch_find_lines(BatchRun *run)
{
	const char *s = (const char *)run->in.data;
	size_t cap = 0;

	for (size_t i = 0, n; i < run->in.size && run->n_line <= MAX_LINES; i += n + 1) {
		const char *end = memchr(s + i, '\n', run->in.size - i);
		n = end ? (size_t)(end - (s + i)) : run->in.size - i;
		if (n == 0 || (n == 1 && s[i] == '\r'))
			continue;
		if (n > INT32_MAX)
			return false;
		if (run->n_line == cap) {
			cap = cap ? 2 * cap : 256;
			BatchLine *more = realloc(run->line, cap * sizeof *more);
			if (!more)
				return false;
			run->line = more;
		}
		run->line[run->n_line++] = (BatchLine){ .at = i, .n = (uint32_t)n };
	}
	return true;
}

bool
batch_check(BatchRun *run)
{
	char path[PATH_MAX];
	llmc_error err;

	store_path(run->st, path, sizeof path, run->b->input, "");
	run->names = json_object();
	if (file_map(path, &run->in, &err) != LLMC_OK || !run->names || !batch_find_lines(run)) {
		batch_wrong(run, 0, "file_unreadable", "input_file_id", "The file cannot be read.");
		return false;
	}
	if (!run->n_line)
		batch_wrong(run, 0, "empty_file", "input_file_id",
		            "The file is empty: expected one line per request.");
	if (run->n_line > MAX_LINES)
		batch_wrong(run, 0, "too_many_requests", "input_file_id",
		            "The file has more than %d lines.", MAX_LINES);
	for (size_t i = 0; i < run->n_line && run->n_line <= MAX_LINES; i++) {
		if (i % 256 == 0 && batch_halted(run))
			return false;
		batch_check_line(run, i);
	}
	json_t *latest = json_array_get(run->errors, MAX_ERRORS - 1);
	if (run->n_wrong > MAX_ERRORS && latest) {
		char text[128];
		snprintf(text, sizeof text, "%zu more mistakes were found, from this line on.",
		         run->n_wrong - MAX_ERRORS + 1);
		json_object_set_new(latest, "code", json_string("too_many_errors"));
		json_object_set_new(latest, "message", json_string(text));
		json_object_set_new(latest, "param", json_null());
	}
	return !run->errors;
}
