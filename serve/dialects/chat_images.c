#include "serve/dialects/chat_images.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base64.h"
#include "base/deadline.h"
#include "base/json.h"
#include "base/sha256.h"
#include "serve/dialects/generation.h"
#include "serve/http/api_keys.h"

enum { MAX_FILE = 32 << 20, FETCH_S = 10 };

/* ---- parts ---- */

static json_t *
part(const char *key, const json_t *value, const json_t *detail, const char *where)
{
	return json_pack("{s:s,s:{s:O,s:O*,s:s}}", "type", "image_url", "image_url", key, value,
	                 "detail", detail, "where", where);
}

json_t *
image_part_url(const json_t *url, const json_t *detail, const char *where)
{
	return part("url", url, detail, where);
}

json_t *
image_part_base64(const json_t *data, const char *where)
{
	return part("data", data, NULL, where);
}

bool
is_image_part(const json_t *part)
{
	const char *type = json_string_value(json_object_get(part, "type"));

	return type && (!strcmp(type, "image_url") || !strcmp(type, "image") ||
	                !strcmp(type, "input_image"));
}

/* Write the name of the field of part k of message i: its name in the client's body, if the part
 * carries that. */
static void
field_of(const json_t *part, size_t i, size_t k, char out[96])
{
	const char *theirs =
	    json_string_value(json_object_get(json_object_get(part, "image_url"), "where"));

	if (theirs)
		snprintf(out, 96, "%s", theirs);
	else
		snprintf(out, 96, "messages[%zu].content[%zu]", i, k);
}

/* Return the model that owns the tower and the image cache: for an adapter its base model. */
static ServedModel *
owner_of(ServedModel *model)
{
	return model->of ? model->of : model;
}

bool
chat_images_check(const ChatImages *im, ServedModel *model, const json_t *messages, Problem *p)
{
	const int32_t most = model->srv->opt.max_images;
	const json_t *m, *part;
	size_t i, k, n = 0;
	char where[96] = "";

	json_array_foreach ((json_t *)(uintptr_t)messages, i, m) {
		const json_t *content = json_object_get(m, "content");
		json_array_foreach ((json_t *)(uintptr_t)content, k, part) {
			if (is_image_part(part) && !n++)
				field_of(part, i, k, where);
		}
	}
	if (n && !owner_of(model)->back.tower)
		return problem(p, 400, where,
		               "The model '%.100s' reads text only, but the request has images "
		               "(%zu).",
		               model->name, n);
	if (n && !im)
		return problem(p, 400, where, "Images are not supported here.");
	if (n > (size_t)most)
		return problem(p, 400, where,
		               "The request has %zu images; at most %d are accepted "
		               "(--max-images).",
		               n, most);
	if (n && !im->req->on_images)
		p->status = PROBLEM_MOVED;
	return !p->status;
}

/* ---- sources ---- */

static bool
decode(ChatImage *c, const char *s, size_t n, Problem *p)
{
	size_t at;

	c->data = malloc(n / 4 * 3 + 6);
	if (!c->data)
		return problem_memory(p);
	ptrdiff_t got = base64_decode(s, n, c->data, &at);
	if (got < 0 && at < n)
		return problem(p, 400, c->where,
		               "Invalid '%s': character %zu of the data is no base64.", c->where,
		               at);
	if (got <= 0)
		return problem(p, 400, c->where,
		               got ? "Invalid '%s': the base64 data is truncated (%zu characters)."
		                   : "Invalid '%s': the image is empty (%zu characters).",
		               c->where, n);
	c->n = (size_t)got;
	return true;
}

/* Read data:[MEDIA TYPE][;PARAMETERS];base64,DATA. The media type is ignored: the bytes determine
 * the format. */
static bool
read_data_url(ChatImage *c, const char *url, size_t n, Problem *p)
{
	const char *comma = memchr(url, ',', n), *type = url + 5;
	const size_t len = comma ? (size_t)(comma - type) : 0, kind = strcspn(type, ";,");

	if (!comma || len < 7 || strncasecmp(comma - 7, ";base64", 7) != 0)
		return problem(p, 400, c->where,
		               "Invalid '%s': expected 'data:image/...;base64,' and the image.",
		               c->where);
	if (kind && kind < len && strncasecmp(type, "image/", 6) != 0 &&
	    strncasecmp(type, "application/octet-stream;", 25) != 0)
		return problem(p, 400, c->where,
		               "Invalid '%s': a data: URL of type '%.*s' is no image.", c->where,
		               (int)(kind < 60 ? kind : 60), type);
	return decode(c, comma + 1, n - (size_t)(comma + 1 - url), p);
}

/* Is the image still needed: the client waits, the time limit of the request is not over, and no
 * /pause has cancelled it? */
static bool
still_wanted(void *user)
{
	Req *r = user;

	pthread_mutex_lock(&r->srv->lock);
	bool gone = r->gone || r->cancelled || r->srv->closing;
	pthread_mutex_unlock(&r->srv->lock);
	return !gone && !deadline_passed();
}

static bool
fetch(ChatImages *im, ChatImage *c, const char *url, Problem *p)
{
	Server *s = im->req->srv;
	llmc_fetch_options o = LLMC_INIT(llmc_fetch_options);
	llmc_error err = { 0 };
	void *data = NULL;

	if (!s->opt.allow_image_urls)
		return problem(p, 400, c->where,
		               "Invalid '%s': this server fetches no images. Send it as "
		               "'data:image/...;base64,...', or start the server with "
		               "--allow-image-urls.",
		               c->where);
	const double now = clock_now();
	im->fetch_until = im->fetch_until > 0 ? im->fetch_until : now + FETCH_S;
	o.hosts = s->opt.allow_image_urls;
	o.max_bytes = MAX_FILE;
	o.timeout_s = im->fetch_until > now ? im->fetch_until - now : 1e-3;
	o.go_on = still_wanted;
	o.user = im->req;
	llmc_status status = llmc_fetch(url, &o, &data, &c->n, &err);
	c->data = data;
	if (status == LLMC_E_CANCELLED)
		return gen_stopped(im->req, p);
	if (status != LLMC_OK)
		return problem_of(p, status, 400, c->where, "Invalid '%s': %s", c->where, err.text);
	return req_charge(im->req, c->n) || problem_busy(p);
}

static bool
read_source(ChatImages *im, ChatImage *c, const json_t *source, Problem *p)
{
	const json_t *url = json_is_string(source) ? source : json_object_get(source, "url"),
	             *data = json_object_get(source, "data");
	const char *s = json_string_value(url);

	if (json_is_string(data))
		return decode(c, json_string_value(data), json_string_length(data), p);
	if (!s)
		return problem(p, 400, c->where,
		               "Invalid '%s': expected an 'image_url' that is an object with a "
		               "'url'.",
		               c->where);
	if (strncasecmp(s, "data:", 5) == 0)
		return read_data_url(c, s, json_string_length(url), p);
	if (strncasecmp(s, "http://", 7) == 0 || strncasecmp(s, "https://", 8) == 0)
		return fetch(im, c, s, p);
	return problem(p, 400, c->where,
	               "Invalid '%s': expected a URL that begins with 'data:image/', got '%.20s'.",
	               c->where, s);
}

static bool
read_detail(ChatImage *c, const json_t *detail, Problem *p)
{
	const char *s = json_string_value(detail);

	if (!detail || json_is_null(detail))
		return true;
	if (!s || (strcmp(s, "auto") != 0 && strcmp(s, "low") != 0 && strcmp(s, "high") != 0 &&
	           strcmp(s, "original") != 0))
		return problem(p, 400, c->where,
		               "Invalid 'detail' of '%s': expected 'auto', 'low', 'high' or "
		               "'original'.",
		               c->where);
	c->low = !strcmp(s, "low");
	return true;
}

/* Hash the file, the options for reading it, and the key of --keys that sent it. With a hash that
 * ignores the key, a short time would show a client that another one has sent the same image. */
static void
hash_image(const ChatImages *im, ChatImage *c)
{
	const Req *r = im->req;
	const char *owner = r->key ? r->key->name : r->owner;
	Sha256 sum;

	owner = owner && !r->srv->opt.share_prefix ? owner : "";
	sha256_init(&sum);
	sha256_add(&sum, owner, strlen(owner) + 1);
	sha256_add(&sum, &im->salt, sizeof im->salt);
	sha256_add(&sum, &c->low, sizeof c->low);
	sha256_add(&sum, c->data, c->n);
	sha256_hex(&sum, c->hash);
}

/* Run the tower over an image, or only count its tokens (count_only). */
static bool
read_image(ChatImages *im, ServedModel *model, const ChatImage *c, bool count_only,
           llmc_tower_image **out, Problem *p)
{
	llmc_read_options o = LLMC_INIT(llmc_read_options);
	llmc_error err = { 0 };

	o.max_pixels = model->srv->opt.image_pixels;
	o.low = c->low;
	o.count_only = count_only;
	o.go_on = still_wanted;
	o.user = im->req;
	llmc_status status =
	    llmc_tower_read(owner_of(model)->back.tower, c->data, c->n, &o, out, &err);
	if (status == LLMC_OK)
		return true;
	if (status == LLMC_E_CANCELLED)
		return gen_stopped(im->req, p);
	bool ours = status == LLMC_E_DEVICE || status == LLMC_E_BUG || status == LLMC_E_FULL;
	return problem_of(p, status, ours ? 500 : 400, c->where, "Invalid '%s': %s", c->where,
	                  err.text);
}

static int64_t
rows_of(const llmc_tower_image *im)
{
	llmc_image_part part = LLMC_INIT(llmc_image_part);

	llmc_tower_image_part(im, &part);
	return part.n_row;
}

bool
chat_images_add(ChatImages *im, ServedModel *model, const json_t *part, const char *where,
                Problem *p)
{
	const json_t *source = json_object_get(part, "image_url");
	const char *theirs = json_string_value(json_object_get(source, "where"));
	ChatImage *list = realloc(im->image, (im->n + 1) * sizeof *list), *c;
	llmc_tower_image *counted;

	if (!list)
		return problem_memory(p);
	im->image = list;
	c = &list[im->n++];
	*c = (ChatImage){ 0 };
	snprintf(c->where, sizeof c->where, "%s", theirs ? theirs : where);
	if (!read_source(im, c, source, p) ||
	    !read_detail(c, json_object_get(json_is_string(source) ? part : source, "detail"), p))
		return false;
	if (c->n > MAX_FILE)
		return problem(p, 413, c->where,
		               "Invalid '%s': the image has %zu bytes; at most %d are accepted.",
		               c->where, c->n, (int)MAX_FILE);
	hash_image(im, c);
	c->kept = image_cache_find(owner_of(model)->images, c->hash);
	if (!c->kept && !read_image(im, model, c, true, &counted, p))
		return false;
	const llmc_tower_image *known = c->kept ? kept_image(c->kept) : counted;
	c->text = strdup(llmc_tower_image_text(known));
	im->n_token += rows_of(known);
	if (!c->kept)
		llmc_tower_image_close(counted);
	return c->text || problem_memory(p);
}

bool
chat_images_place(ChatImages *im, ServedModel *model, char **text, size_t *n, Problem *p)
{
	const char *mark = llmc_tower_placeholder(owner_of(model)->back.tower), *rest = *text,
	           *end = *text + *n;
	const size_t len = strlen(mark);
	size_t used = 0;
	Strbuf b = { 0 };

	for (const char *at; (at = memmem(rest, (size_t)(end - rest), mark, len)) != NULL;
	     rest = at + len, used++) {
		strbuf_add(&b, rest, (size_t)(at - rest));
		if (used < im->n)
			strbuf_puts(&b, im->image[used].text);
	}
	strbuf_add(&b, rest, (size_t)(end - rest));
	if (used != im->n) {
		strbuf_release(&b);
		return problem(p, 400, "messages",
		               "The chat template shows %zu of the %zu images of the messages. Put "
		               "images into messages of the user.",
		               used, im->n);
	}
	strbuf_putc(&b, 0);
	if (b.failed) {
		strbuf_release(&b);
		return problem_memory(p);
	}
	free(*text);
	*text = b.data;
	*n = b.len - 1;
	return true;
}

/* Run the tower over one image, unless the cache has an equal image by now. */
static bool
run(ChatImages *im, ServedModel *model, ChatImage *c, Problem *p)
{
	ServedModel *owner = owner_of(model);
	const int64_t width = owner->back.info.hidden;
	llmc_tower_image *made;

	if (!c->kept)
		c->kept = image_cache_find(owner->images, c->hash);
	if (!c->kept) {
		if (!read_image(im, model, c, false, &made, p))
			return false;
		c->kept = image_cache_add(owner->images, c->hash, made,
		                          rows_of(made) * width * (int64_t)sizeof(float));
		if (!c->kept) {
			llmc_tower_image_close(made);
			return problem_memory(p);
		}
	}
	free(c->data);
	c->data = NULL;
	/* the engine has a copy until the request ends */
	const size_t bytes = (size_t)rows_of(kept_image(c->kept)) * (size_t)width * sizeof(float);
	return req_charge(im->req, bytes) || problem_busy(p);
}

bool
chat_images_run(ChatImages *im, ServedModel *model, Problem *p)
{
	if (!im->n)
		return true;
	im->part = calloc(im->n, sizeof *im->part);
	if (!im->part)
		return problem_memory(p);
	for (size_t i = 0; i < im->n; i++) {
		if (!still_wanted(im->req))
			return gen_stopped(im->req, p);
		if (!run(im, model, &im->image[i], p))
			return false;
		llmc_tower_image_part(kept_image(im->image[i].kept), &im->part[i]);
	}
	return true;
}

void
chat_images_release(ChatImages *im, ServedModel *model)
{
	for (size_t i = 0; i < im->n; i++) {
		image_cache_unref(owner_of(model)->images, im->image[i].kept);
		free(im->image[i].data);
		free(im->image[i].text);
	}
	free(im->image);
	free(im->part);
	im->image = NULL;
	im->part = NULL;
	im->n = 0;
}
