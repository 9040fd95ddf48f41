/* Finds models in a folder and in the download cache, so that requests may use them by name. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/model_file.h"
#include "base/text.h"
#include "serve/models/catalogue.h"
#include "serve/models/model_manager.h"

enum { FOLDER_DEPTH = 2 }; /* models are at DIR/NAME and DIR/ORG/NAME */

bool
catalogue_is_on(const Server *s)
{
	return s->slot[0]->src.sibling && (s->opt.models_dir || s->opt.models_pulled);
}

/* ---- lists ---- */

static void
entry_free(FoundModel *m)
{
	free(m->name);
	free(m->path);
}

/* Requests may append the tag `latest` to any name, so names are stored without it. */
static void
add(FoundModels *list, const char *name, const char *path, int64_t bytes, time_t modified)
{
	const size_t n = strlen(name) - (ends_with(name, LATEST) ? sizeof LATEST - 1 : 0);

	if (list->n == list->cap) {
		const size_t cap = 2 * list->cap + 16;
		FoundModel *more = realloc(list->at, cap * sizeof *more);
		if (!more) {
			list->failed = true;
			return;
		}
		list->at = more;
		list->cap = cap;
	}
	FoundModel m = { strndup(name, n), strdup(path), bytes, modified };
	if (m.name && m.path) {
		list->at[list->n++] = m;
	} else {
		entry_free(&m);
		list->failed = true;
	}
}

void
catalogue_free(FoundModels *list)
{
	for (size_t i = 0; i < list->n; i++)
		entry_free(&list->at[i]);
	free(list->at);
	*list = (FoundModels){ 0 };
}

static int
by_name_and_path(const void *a, const void *b)
{
	const FoundModel *x = a, *y = b;
	const int order = strcmp(x->name, y->name);

	return order ? order : strcmp(x->path, y->path);
}

/* Sort, and keep the first entry of each name. */
static void
sort(FoundModels *list)
{
	size_t n = 0;

	if (list->n)
		qsort(list->at, list->n, sizeof *list->at, by_name_and_path);
	for (size_t i = 0; i < list->n; i++) {
		if (n && !strcmp(list->at[i].name, list->at[n - 1].name))
			entry_free(&list->at[i]);
		else
			list->at[n++] = list->at[i];
	}
	list->n = n;
}

/* ---- a folder ---- */

/* Return the length of a model's name: the file's name without extension and part suffix
 * (-00001-of-00003). 0: not a model, a vision tower, or a part after the first. */
static size_t
stem_of(const char *file)
{
	const bool gguf = model_file_is_gguf(file);
	int no, count;

	if (file[0] == '.' || (!gguf && !ends_with(file, ".flm")))
		return 0;
	if (!gguf)
		return strlen(file) - 4;
	const size_t n = model_file_part(file, 5, &no, &count);
	return no == 1 ? n : 0;
}

/* Sum the sizes of a folder's files. *described: it has a config.json or model.yaml. *gguf: the
 * folder's only GGUF model, or the model's first part; empty: there is none, or several, or there
 * are subfolders. */
static int64_t
measure(const char *dir, time_t *modified, bool *described, char gguf[PATH_MAX])
{
	DIR *d = opendir(dir);
	int64_t bytes = 0;
	int n_gguf = 0, n_folder = 0;

	*gguf = 0;
	*described = false;
	for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
		char path[PATH_MAX];
		struct stat st;
		if (snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path ||
		    stat(path, &st) != 0)
			continue;
		n_folder += S_ISDIR(st.st_mode) && e->d_name[0] != '.';
		if (!S_ISREG(st.st_mode))
			continue;
		bytes += st.st_size;
		*modified = st.st_mtime > *modified ? st.st_mtime : *modified;
		*described |= !strcmp(e->d_name, "config.json") || !strcmp(e->d_name, "model.yaml");
		if (!stem_of(e->d_name) || !ends_with(e->d_name, ".gguf"))
			continue;
		n_gguf++;
		snprintf(gguf, PATH_MAX, "%s", path);
	}
	if (d)
		closedir(d);
	if (n_gguf != 1 || n_folder)
		*gguf = 0;
	return bytes;
}

/* Add the models of a folder. prefix: "" or "ORG/" */
static void
list_folder(FoundModels *list, const char *dir, const char *prefix, int depth)
{
	DIR *d = opendir(dir);

	for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
		char path[PATH_MAX], gguf[PATH_MAX], name[512];
		struct stat st;
		if (e->d_name[0] == '.' ||
		    snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path ||
		    stat(path, &st) != 0)
			continue;
		if (S_ISREG(st.st_mode)) {
			const int n = (int)stem_of(e->d_name);
			if (n && snprintf(name, sizeof name, "%s%.*s", prefix, n, e->d_name) <
			             (int)sizeof name)
				add(list, name, path, st.st_size, st.st_mtime);
			continue;
		}
		if (!S_ISDIR(st.st_mode) ||
		    snprintf(name, sizeof name, "%s%s", prefix, e->d_name) + 1 >= (int)sizeof name)
			continue;
		time_t modified = 0;
		bool described;
		const int64_t bytes = measure(path, &modified, &described, gguf);
		if (described)
			add(list, name, path, bytes, modified);
		else if (*gguf)
			add(list, name, gguf, bytes, modified);
		else if (depth > 1)
			list_folder(list, path, strcat(name, "/"), depth - 1);
	}
	if (d)
		closedir(d);
}

/* ---- the download cache ---- */

static json_t *
pulled(void)
{
	size_t cap = 1 << 16, need = 0;

	for (;;) {
		char *buf = malloc(cap);
		llmc_error err = { 0 };
		if (!buf)
			return NULL;
		const llmc_status status = llmc_pulled(buf, cap, &need, &err);
		json_t *list =
		    status == LLMC_OK ? json_parse(buf, strlen(buf), 0, NULL, NULL) : NULL;
		free(buf);
		if (status != LLMC_E_RANGE || need < cap)
			return list;
		cap = need + 4096; /* with reserve, because the cache may grow meanwhile */
	}
}

/* Return a name without the prefix "hf:". */
static const char *
without_hf(const char *name)
{
	return strncmp(name, "hf:", 3) ? name : name + 3;
}

static void
list_pulled(FoundModels *list)
{
	json_t *all = pulled();
	size_t i;
	const json_t *e;

	list->failed |= !all;
	json_array_foreach (all, i, e)
		if (json_is_true(json_object_get(e, "complete")))
			add(list, without_hf(json_text_of(e, "name")), json_text_of(e, "path"),
			    json_integer_value(json_object_get(e, "bytes")),
			    (time_t)json_integer_value(json_object_get(e, "modified")));
	json_decref(all);
}

FoundModels
catalogue_list(const Server *s)
{
	FoundModels list = { 0 };

	if (!catalogue_is_on(s))
		return list;
	if (s->opt.models_dir)
		list_folder(&list, s->opt.models_dir, "", FOLDER_DEPTH);
	if (s->opt.models_pulled)
		list_pulled(&list);
	sort(&list);
	return list;
}

const FoundModel *
catalogue_entry(const FoundModels *list, const char *name)
{
	name = without_hf(name);
	for (size_t i = 0; i < list->n; i++)
		if (slot_is_named(list->at[i].name, name))
			return &list->at[i];
	return NULL;
}

/* ---- slots ---- */

/* Create a slot, whose description the manager thread reads later. */
static Slot *
unread_slot(const Server *s, const FoundModel *f)
{
	Slot *t = calloc(1, sizeof *t);
	llmc_error err;

	if (!t)
		return NULL;
	t->name = strdup(f->name);
	t->found = t->unread = true;
	if (!t->name ||
	    s->slot[0]->src.sibling(s->slot[0]->src.self, f->path, &t->src, &err) != LLMC_OK) {
		slot_free(t);
		return NULL;
	}
	return t;
}

Slot *
models_only(Server *s, Problem *p)
{
	FoundModels list = catalogue_list(s);
	Slot *t = NULL;
	Strbuf b = { 0 };

	for (size_t i = 0; i < list.n && b.len < 500; i++)
		strbuf_printf(&b, "%s'%s'", i ? ", " : "", list.at[i].name);
	if (list.failed || b.failed)
		problem_memory(p);
	else if (!list.n)
		problem(p, 503, "model", "This server has no models yet: put one into %s.",
		        s->opt.models_dir ? s->opt.models_dir : "the cache with `llmc pull`");
	else if (list.n > 1)
		problem(p, 400, "model", "Name one of this server's models as 'model': %s%s.",
		        strbuf_str(&b), b.len < 500 ? "" : ", ...");
	else
		t = models_find_or_add(s, list.at[0].name, p);
	strbuf_release(&b);
	catalogue_free(&list);
	return t;
}

Slot *
models_find_or_add(Server *s, const char *name, Problem *p)
{
	Slot *t = models_find(s, name), *old = NULL, *made;

	if (t)
		return t;
	FoundModels list = catalogue_list(s);
	const FoundModel *f = catalogue_entry(&list, name);
	if (!f) {
		if (list.failed)
			problem_memory(p);
		else
			models_unknown(s, name, p);
		catalogue_free(&list);
		return NULL;
	}
	made = unread_slot(s, f);
	pthread_mutex_lock(&s->lock);
	t = slot_find(s, f->name); /* another request may have added the slot meanwhile */
	if (!t && made && (t = slot_put(s, made, &old)) != NULL) {
		t->removed = false;
		t->was_found = true;
		t->paused = s->paused_all;
		made = NULL;
	}
	pthread_mutex_unlock(&s->lock);
	if (!t && made)
		problem(p, 503, "model", "A server has at most %d model names in its lifetime.",
		        MAX_MODELS);
	else if (!t)
		problem_memory(p);
	slot_free(made);
	slot_free(old);
	catalogue_free(&list);
	return t;
}
