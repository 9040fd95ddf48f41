/* The folder of files and batches: see batch.h. An uploaded file consists of a file with its bytes,
 * named by its id, and id.json with its properties. Output files have no id.json; their batch
 * describes them. */
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "serve/batch/batch.h"
#include "serve/http/api_keys.h"

/* ---- names ---- */

void
store_id(char out[ID_SIZE], const char *prefix)
{
	size_t at = strlen(prefix);

	memcpy(out, prefix, at);
	random_hex(out + at, ID_DIGITS / 2);
}

void
store_path(const FileStore *st, char *out, size_t cap, const char *id, const char *tail)
{
	snprintf(out, cap, "%s/%s%s", st->dir, id, tail);
}

/* ---- usage per owner; lock held ---- */

OwnerUsage *
store_share(FileStore *st, const char *owner)
{
	for (size_t i = 0; i < st->n_share; i++)
		if (!strcmp(st->share[i].owner, owner))
			return &st->share[i];
	OwnerUsage *more = realloc(st->share, (st->n_share + 1) * sizeof *more);
	char *name = strdup(owner);
	st->share = more ? more : st->share;
	if (!more || !name) {
		free(name);
		return &st->lost;
	}
	st->share[st->n_share] = (OwnerUsage){ .owner = name };
	return &st->share[st->n_share++];
}

int64_t
store_part(const FileStore *st, const char *owner, int64_t all)
{
	const Keys *k = st->srv->keys;

	return k && k->n && *owner ? (all + k->n - 1) / k->n : all;
}

size_t
store_most(const FileStore *st, const char *owner)
{
	return (size_t)store_part(st, owner, MAX_STORED);
}

void
store_count(FileStore *st, const char *owner, int64_t bytes)
{
	st->used += bytes;
	store_share(st, owner)->used += bytes;
}

/* ---- the folder ---- */

StoredFile *
store_find(FileStore *st, const char *id)
{
	for (size_t i = 0; i < st->n_file; i++)
		if (!strcmp(st->file[i].id, id))
			return &st->file[i];
	return NULL;
}

bool
store_add(FileStore *st, const StoredFile *f)
{
	/* grow when the array is full, at 0, 1, 3, 7, ... entries */
	StoredFile *more = st->n_file & (st->n_file + 1)
	                       ? st->file
	                       : realloc(st->file, 2 * (st->n_file + 1) * sizeof *more);
	char *name = strdup(f->name), *owner = strdup(f->owner);

	st->file = more ? more : st->file;
	if (!more || !name || !owner) {
		free(name);
		free(owner);
		return false;
	}
	st->file[st->n_file] = *f;
	st->file[st->n_file].name = name;
	st->file[st->n_file++].owner = owner;
	return true;
}

/* ---- shared by the routes ---- */

FileStore *
store_of(Req *r, Problem *p)
{
	if (r->srv->store)
		return r->srv->store;
	problem(p, 404, NULL, "This server stores no files: start it with --batch-dir FOLDER.");
	p->code = "files_not_kept";
	return NULL;
}

bool
store_sees(const Req *r, const char *owner)
{
	return !r->key || !strcmp(r->key->name, owner);
}

bool
store_page(Req *r, int most, int *limit, char after[ID_SIZE], Problem *p)
{
	char text[16] = "";
	char *end = text;

	after[0] = 0;
	head_query(&r->in, "after", after, ID_SIZE);
	if (!head_query(&r->in, "limit", text, sizeof text))
		return true;
	long n = strtol(text, &end, 10);
	if (end == text || *end || n < 1 || n > most)
		return problem(p, 400, "limit", "Invalid 'limit': expected a number from 1 to %d.",
		               most);
	*limit = (int)n;
	return true;
}

void
store_list_end(Strbuf *b, const char *first, const char *last, bool more)
{
	strbuf_puts(b, "],\"first_id\":");
	strbuf_printf(b, *first ? "\"%s\"" : "null", first);
	strbuf_puts(b, ",\"last_id\":");
	strbuf_printf(b, *last ? "\"%s\"" : "null", last);
	strbuf_puts(b, more ? ",\"has_more\":true}" : ",\"has_more\":false}");
}
