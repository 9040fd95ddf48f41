/* Makes a model of Hugging Face available: from the cache if it is complete there, else by
 * requesting the commit and the files of the revision, and downloading those that are missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/nearest.h"
#include "hub/hub.h"

/* Limits: bytes of an answer, and pages and bytes of a list of files. The Hub sends 1000 files per
 * page, with about 300 bytes each. */
enum { MAX_ANSWER_BYTES = 64 << 20, MAX_PAGES = 1000, MAX_LIST_BYTES = 256 << 20 };

/* ---- messages ---- */

static const char *
page_of(Hub *h, const HubName *name)
{
	return arena_printf(h->a, "%s/%s", h->cfg.endpoint, name->repo);
}

static llmc_status
no_access(Hub *h, const HubName *name, const HubAnswer *head, llmc_error *err)
{
	const char *token = h->cfg.token_from;

	if (strcmp(head->error_code, "GatedRepo") == 0)
		return h->cfg.token
		           ? error_set(err, LLMC_E_INPUT,
		                       "%s: the model is gated, and the account of the token in %s "
		                       "has no access to it: accept its terms at %s",
		                       name->text, token, page_of(h, name))
		           : error_set(err, LLMC_E_INPUT,
		                       "%s: the model is gated: accept its terms at %s, then set "
		                       "HF_TOKEN to an access token of that account",
		                       name->text, page_of(h, name));
	if (head->status == 401 && h->cfg.token && !*head->error_code)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: %s does not accept the token in %s (401)%s%s", name->text,
		                 h->cfg.endpoint, token, *head->error_message ? ": " : "",
		                 head->error_message);
	if (head->status == 403)
		return error_set(err, LLMC_E_INPUT, "%s: %s refuses access (403)%s%s", name->text,
		                 h->cfg.endpoint, *head->error_message ? ": " : "",
		                 head->error_message);
	if (h->cfg.token)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: %s has no such model, or the token in %s may not read it",
		                 name->text, h->cfg.endpoint, token);
	return error_set(err, LLMC_E_INPUT,
	                 "%s: %s has no such model, or it is private: check the name, or set "
	                 "HF_TOKEN to an access token",
	                 name->text, h->cfg.endpoint);
}

/* Append the names of one list of the answer about branches and tags. */
static void
add_refs(const json_t *list, const char **out, size_t *n, size_t cap)
{
	size_t i;
	const json_t *e;

	json_array_foreach (list, i, e) {
		const char *s = json_string_value(json_object_get(e, "name"));
		if (s && *n < cap && hub_path_is_safe(s))
			out[(*n)++] = s;
	}
}

static llmc_status
no_revision(Hub *h, const HubName *name, llmc_error *err)
{
	enum { MAX_REFS = 512 };
	const char **ref = NEW(h->a, const char *, MAX_REFS), *near = NULL;
	Strbuf *text = arena_strbuf(h->a), *list = arena_strbuf(h->a);
	HubAnswer head = { 0 };
	llmc_error own = { 0 };
	size_t n = 0;

	if (http_get(h, arena_printf(h->a, "%s/api/models/%s/refs", h->cfg.endpoint, name->repo),
	             MAX_ANSWER_BYTES, text, &head, &own) == LLMC_OK &&
	    head.status == 200) {
		const json_t *root = json_read(h->a, strbuf_str(text), text->len, 0, NULL);
		add_refs(json_object_get(root, "branches"), ref, &n, MAX_REFS);
		add_refs(json_object_get(root, "tags"), ref, &n, MAX_REFS);
	}
	near = nearest_text(name->revision, ref, n);
	for (size_t i = 0; i < n && list->len < 800; i++)
		strbuf_printf(list, "%s%.100s", i ? ", " : "; there are ", ref[i]);
	return error_set(err, LLMC_E_INPUT, "%s: no branch, tag or commit %s%s%s%s%s", name->text,
	                 name->revision, near ? ", did you mean " : "", near ? near : "",
	                 near ? "?" : "", strbuf_str(list));
}

/* Turn an answer other than 200 into a message. */
static llmc_status
check_answer(Hub *h, const HubName *name, const HubAnswer *head, llmc_error *err)
{
	if (head->status == 200)
		return LLMC_OK;
	if (head->status == 401 || head->status == 403 ||
	    (head->status == 404 && strcmp(head->error_code, "RevisionNotFound") != 0 &&
	     (!strcmp(head->error_code, "RepoNotFound") || !*head->error_code)))
		return no_access(h, name, head, err);
	if (head->status == 404)
		return no_revision(h, name, err);
	return error_set(err, LLMC_E_IO, "%s: %s answers %ld%s%s", name->text, h->cfg.endpoint,
	                 head->status, *head->error_message ? ": " : "", head->error_message);
}

/* ---- the Hub's API ---- */

/* Request the commit of a revision. */
static llmc_status
request_commit(Hub *h, const HubName *name, const char **commit, llmc_error *err)
{
	Strbuf *url = arena_strbuf(h->a), *text = arena_strbuf(h->a);
	HubAnswer head = { 0 };
	json_error_t why;

	strbuf_printf(url, "%s/api/models/%s/revision/", h->cfg.endpoint, name->repo);
	hub_url_add(url, name->revision, false);
	TRY(http_get(h, strbuf_str(url), MAX_ANSWER_BYTES, text, &head, err));
	TRY(check_answer(h, name, &head, err));
	const json_t *root = json_read(h->a, strbuf_str(text), text->len, 0, &why);
	const char *sha = json_string_value(json_object_get(root, "sha"));
	if (!hub_is_hex(sha, 40))
		return error_set(err, LLMC_E_IO,
		                 "%s: the answer of %s names no commit; is it a server of models? "
		                 "(HF_ENDPOINT)",
		                 name->text, h->cfg.endpoint);
	*commit = arena_strdup(h->a, sha);
	return LLMC_OK;
}

/* Get the address of the next page; NULL: none. The same rules apply to it as to redirects. */
static llmc_status
next_page(Hub *h, const HubName *name, const HubAnswer *head, const char **url, llmc_error *err)
{
	const char *next = http_next_link(head->link, h->a), *host = strstr(h->cfg.endpoint, "://");

	if (head->link_cut)
		return error_set(err, LLMC_E_IO,
		                 "%s: the address of the next page of the list of files is longer "
		                 "than %zu bytes",
		                 name->text, sizeof head->link);
	if (next && next[0] == '/')
		next = arena_printf(h->a, "%.*s%s",
		                    (int)(host + 3 - h->cfg.endpoint + strcspn(host + 3, "/")),
		                    h->cfg.endpoint, next);
	if (next && !http_may_follow(h->cfg.endpoint, next))
		return error_set(err, LLMC_E_IO,
		                 "%s: the list of files continues at %.200s, which is not https",
		                 name->text, next);
	*url = next;
	return LLMC_OK;
}

/* Request the files of a commit, page by page. */
static llmc_status
request_tree(Hub *h, const HubName *name, const char *commit, HubTree *out, llmc_error *err)
{
	const char *url = arena_printf(h->a, "%s/api/models/%s/tree/%s?recursive=true",
	                               h->cfg.endpoint, name->repo, commit);

	size_t bytes = 0;

	*out = (HubTree){ 0 };
	for (int page = 0; url; page++) {
		Strbuf *text = arena_strbuf(h->a);
		HubAnswer head = { 0 };
		if (page == MAX_PAGES || bytes > MAX_LIST_BYTES)
			return error_set(err, LLMC_E_IO, "%s: the list of files does not end",
			                 name->text);
		TRY(http_get(h, url, MAX_ANSWER_BYTES, text, &head, err));
		TRY(check_answer(h, name, &head, err));
		llmc_status s = hub_tree_parse(out, strbuf_str(text), text->len, h->a, err);
		if (s != LLMC_OK) {
			error_prefix(err, "%s: the answer of %s is not valid", name->text,
			             h->cfg.endpoint);
			return s;
		}
		bytes += text->len;
		strbuf_release(text);
		TRY(next_page(h, name, &head, &url, err));
	}
	return hub_tree_check(out, h->a, err);
}

/* ---- files ---- */

static HubPart
part_of(Hub *h, const HubName *name, const HubRepo *r, const char *commit, const HubFile *f)
{
	Strbuf *url = arena_strbuf(h->a);
	const char *id = f->sha256 ? f->sha256 : f->oid;

	strbuf_printf(url, "%s/%s/resolve/%s/", h->cfg.endpoint, name->repo, commit);
	hub_url_add(url, f->path, true);
	return (HubPart){
		.url = arena_strdup(h->a, strbuf_str(url)),
		.name = f->path,
		.dest = arena_printf(h->a, "%s/blobs/%s", r->folder, id),
		.lock = arena_printf(h->a, "%s/.locks/%s/%s.lock", h->cfg.cache, r->name, id),
		.size = f->size,
		.sha256 = f->sha256,
		.git_oid = f->oid,
		.link = arena_printf(h->a, "%s/%s", hub_snapshot(r, commit, h->a), f->path),
	};
}

/* Download the missing files of a choice. tower: including the vision tower of a GGUF model. */
static llmc_status
complete(Hub *h, const HubName *name, const HubRepo *r, const char *commit, const HubChoice *c,
         bool tower, llmc_error *err)
{
	HubPart *p = NEW(h->a, HubPart, c->n + 1);
	size_t n = 0;

	for (size_t i = 0; i < c->n; i++) {
		if (hub_file_is_here(r, commit, c->file[i], h->a) ||
		    (!tower && c->file[i] == c->mmproj))
			continue;
		/* another path has the same content: do not download it twice, link it below */
		bool twice = false;
		HubPart part = part_of(h, name, r, commit, c->file[i]);
		for (size_t k = 0; k < n; k++)
			twice = twice || strcmp(p[k].dest, part.dest) == 0;
		if (twice)
			continue;
		p[n++] = part;
		h->state.total_bytes += part.size;
	}
	h->state.n_files = (int32_t)n;
	if (n > 0 && h->cfg.offline)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: %zu files are not in the cache (%s), and HF_HUB_OFFLINE "
		                 "forbids to download them",
		                 name->text, n, p[0].name);
	TRY(hub_download(h, p, n, err));
	for (size_t i = 0; i < c->n; i++)
		if (!hub_file_is_here(r, commit, c->file[i], h->a) &&
		    (tower || c->file[i] != c->mmproj)) {
			HubPart part = part_of(h, name, r, commit, c->file[i]);
			TRY(hub_link(part.dest, part.link, h->a, err));
		}
	return LLMC_OK;
}

static const char *
main_path(const HubRepo *r, const char *commit, const HubChoice *c, Arena *a)
{
	const char *dir = hub_snapshot(r, commit, a);

	return *c->main ? arena_printf(a, "%s/%s", dir, c->main) : dir;
}

/* Look for the model in the cache. *commit: commit of the revision; NULL: unknown. *whole: all
 * files are in the cache, according to a complete list. Returns NULL if the model is not there. */
static const char *
local(Hub *h, const HubName *name, const HubRepo *r, const char **commit, bool *sure)
{
	HubTree t;
	HubChoice c;

	*sure = false;
	*commit = hub_commit_of(r, name->revision, h->a);
	if (!*commit || !hub_local_tree(r, *commit, &t, h->a) ||
	    hub_choose(&t, name, h->a, &c, NULL) != LLMC_OK || !c.whole)
		return NULL;
	for (size_t i = 0; i < c.n; i++)
		if (c.file[i] != c.mmproj && !hub_file_is_here(r, *commit, c.file[i], h->a))
			return NULL;
	*sure = !t.partial;
	return main_path(r, *commit, &c, h->a);
}

static llmc_status
not_here(Hub *h, const HubName *name, llmc_error *err)
{
	return error_set(err, LLMC_E_INPUT,
	                 "%s: not in the cache (%s), and HF_HUB_OFFLINE forbids to download it",
	                 name->text, h->cfg.cache);
}

/* Download a commit's files into the cache. */
static llmc_status
fetch(Hub *h, const HubName *name, const HubRepo *r, const char *commit, bool tower,
      const char **path, llmc_error *err)
{
	HubTree t;
	HubChoice c;
	const char *trees = arena_printf(h->a, "%s/trees", r->folder);

	if (!hub_local_tree(r, commit, &t, h->a) || t.partial)
		TRY(request_tree(h, name, commit, &t, err));
	TRY(hub_choose(&t, name, h->a, &c, err));
	if (!c.whole)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the repository lacks some of the model's weights",
		                 name->text);
	TRY(file_mkdirs(trees, err));
	TRY(hub_tree_save(&t, arena_printf(h->a, "%s/%s.json", trees, commit), err));
	TRY(complete(h, name, r, commit, &c, tower, err));
	TRY(hub_ref_write(r, name->revision, commit, h->a, err));
	*path = main_path(r, commit, &c, h->a);
	return LLMC_OK;
}

llmc_status
hub_pull(Hub *h, const HubName *name, bool update, const char **path, llmc_error *err)
{
	const HubRepo r = hub_repo(h, name->repo);
	const char *commit, *here;
	bool sure;
	llmc_error own = { 0 };

	here = local(h, name, &r, &commit, &sure);
	if (here && ((sure && !update) || h->cfg.offline)) {
		*path = here;
		return LLMC_OK;
	}
	if (h->cfg.offline)
		return not_here(h, name, err);
	/* Another program has made the snapshot: only the list of files shows whether it is
	 * complete. */
	if (here && !update) {
		if (fetch(h, name, &r, commit, false, path, &own) == LLMC_OK)
			return LLMC_OK;
		if (own.code == LLMC_E_CANCELLED || own.code == LLMC_E_CHECK)
			return error_set(err, own.code, "%s", own.text);
		*path = here;
		return LLMC_OK;
	}
	TRY(request_commit(h, name, &commit, err));
	return fetch(h, name, &r, commit, true, path, err);
}
