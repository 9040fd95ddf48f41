/* Chooses the files of a model from those of its repository.
 *
 * The order is that of the loader (formats/safetensors_folder.c): model.safetensors, its shards,
 * the only .safetensors file, pytorch_model.bin, its shards, the only pickled file, Meta's
 * consolidated.NN.pth. A repository without these has one GGUF model per quantisation. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/model_file.h"
#include "base/nearest.h"
#include "base/number.h"
#include "base/text.h"
#include "hub/hub.h"

/* ---- names of parts and quantisations ---- */

/* True for the name of a quantisation: Q4_K_M, IQ2_XXS, F16, BF16, MXFP4_MOE, TQ1_0, ... */
static bool
is_quant(const char *s, size_t n)
{
	static const char *const whole[] = { "F16", "F32", "F64", "BF16", "FP16", "FP32", "FP8" };
	static const char *const prefix[] = { "MXFP4", "NVFP4" };

	for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
		if (n == strlen(whole[i]) && strncasecmp(s, whole[i], n) == 0)
			return true;
	for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++)
		if (n >= 5 && strncasecmp(s, prefix[i], 5) == 0 && (n == 5 || s[5] == '_'))
			return true;
	if (n > 1 && (toupper((unsigned char)s[0]) == 'I' || toupper((unsigned char)s[0]) == 'T')) {
		s++;
		n--;
	}
	return n >= 2 && toupper((unsigned char)s[0]) == 'Q' && isdigit((unsigned char)s[1]) &&
	       (n == 2 || s[2] == '_');
}

/* Find the quantisation in a stem: the last word between '-', '.' and '/' that names one. A prefix
 * UD- is part of it. */
static void
quant_of(const char *stem, char out[48])
{
	size_t end = strlen(stem);

	*out = 0;
	while (end > 0) {
		size_t at = end;
		while (at > 0 && !strchr("-./", stem[at - 1]))
			at--;
		if (is_quant(stem + at, end - at) && end - at < 40) {
			bool ud = at >= 3 && strncasecmp(stem + at - 3, "UD-", 3) == 0 &&
			          (at == 3 || strchr("-./", stem[at - 4]));
			snprintf(out, 48, "%s%.*s", ud ? "UD-" : "", (int)(end - at), stem + at);
			for (char *c = out; *c; c++)
				*c = (char)toupper((unsigned char)*c);
			return;
		}
		end = at > 0 ? at - 1 : 0;
	}
}

static const char *
base_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* ---- GGUF ---- */

/* A GGUF file, for grouping parts: when sorted, the files of one model are adjacent */
typedef struct GgufFile {
	const HubFile *file;
	size_t stem; /* length of the path without part number and suffix */
	int count;
} GgufFile;

static int
stem_order(const GgufFile *x, const GgufFile *y)
{
	size_t n = x->stem < y->stem ? x->stem : y->stem;
	int order = memcmp(x->file->path, y->file->path, n);

	if (!order)
		order = (x->stem > y->stem) - (x->stem < y->stem);
	return order ? order : x->count - y->count;
}

static int
gguf_order(const void *a, const void *b)
{
	const GgufFile *x = a, *y = b;
	int order = stem_order(x, y);

	return order ? order : strcmp(x->file->path, y->file->path);
}

/* Compare by the order in the list of files */
static int
first_order(const void *a, const void *b)
{
	const HubGguf *x = a, *y = b;

	return (x->first > y->first) - (x->first < y->first);
}

HubGguf *
hub_ggufs(const HubTree *t, Arena *a, size_t *n)
{
	GgufFile *file = NEW(a, GgufFile, t->n + 1);
	const HubFile **part = NEW(a, const HubFile *, t->n + 1);
	HubGguf *all = NEW(a, HubGguf, t->n + 1);
	size_t n_file = 0;
	int no;

	for (size_t i = 0; i < t->n; i++)
		if (model_file_is_gguf(t->file[i].path)) {
			GgufFile *f = &file[n_file++];
			f->file = &t->file[i];
			f->stem = model_file_part(t->file[i].path, strlen(".gguf"), &no, &f->count);
		}
	qsort(file, n_file, sizeof *file, gguf_order);
	*n = 0;
	for (size_t i = 0; i < n_file; i++) {
		part[i] = file[i].file;
		if (i == 0 || stem_order(&file[i - 1], &file[i]) != 0) {
			HubGguf *g = &all[(*n)++];
			*g = (HubGguf){ .stem = arena_strndup(a, part[i]->path, file[i].stem),
				        .count = file[i].count,
				        .part = &part[i],
				        .first = part[i] };
			quant_of(g->stem, g->tag);
		}
		HubGguf *g = &all[*n - 1];
		g->n_part++;
		g->bytes += part[i]->size;
		g->first = part[i] < g->first ? part[i] : g->first;
	}
	qsort(all, *n, sizeof *all, first_order);
	return all;
}

/* Write "Q4_K_M (1.2 GiB), Q8_0 (2.1 GiB)", as far as it fits. */
static void
list_ggufs(const HubGguf *g, size_t n, char *out, size_t cap)
{
	char size[32];
	size_t at = 0;

	*out = 0;
	for (size_t i = 0; i < n && at + 120 < cap; i++) {
		int len = snprintf(out + at, cap - at, "%s%.80s", i ? ", " : "",
		                   g[i].tag[0] ? g[i].tag : base_of(g[i].stem));
		at += len > 0 ? (size_t)len : 0;
		if (g[i].bytes > 0)
			at += (size_t)snprintf(out + at, cap - at, " (%s)",
			                       human_bytes((double)g[i].bytes, size));
		if (i + 1 < n && at + 120 >= cap)
			snprintf(out + at, cap - at, ", ...");
	}
}

static void
take(HubChoice *c, const HubFile *f, Arena *a)
{
	for (size_t i = 0; i < c->n; i++)
		if (c->file[i] == f)
			return;
	c->file = arena_grow(a, c->file, &c->cap, c->n + 1, sizeof *c->file);
	c->file[c->n++] = f;
}

/* Return the length of the path of a file's folder, with its slash */
static size_t
folder_of(const char *path)
{
	return (size_t)(base_of(path) - path);
}

/* Choose the vision tower in the folder of a GGUF model, else in one above it: large models have a
 * folder per quantisation. The rules are those of api/api_mmproj.c, which opens a model. */
static void
take_mmproj(const HubTree *t, Arena *a, HubChoice *out)
{
	const char *base = base_of(out->main);

	for (size_t i = 0; i < t->n; i++) {
		const char *path = t->file[i].path, *best = out->mmproj ? out->mmproj->path : NULL;
		const size_t dir = folder_of(path), other = best ? folder_of(best) : 0;
		if (!model_file_is_mmproj(path) || dir > folder_of(out->main) ||
		    memcmp(path, out->main, dir) != 0)
			continue;
		if (!best || dir > other ||
		    (dir == other &&
		     model_file_mmproj_order(base, base_of(path), base_of(best)) < 0))
			out->mmproj = &t->file[i];
	}
	if (out->mmproj)
		take(out, out->mmproj, a);
}

static llmc_status
take_gguf(const HubTree *t, const HubGguf *g, const HubName *name, Arena *a, HubChoice *out,
          llmc_error *err)
{
	out->whole = g->n_part == g->count;
	if (!out->whole && !t->partial)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: %s has %d of its %d parts in the repository", name->text,
		                 g->stem, g->n_part, g->count);
	for (int i = 0; i < g->n_part; i++)
		take(out, g->part[i], a);
	out->main = g->part[0]->path;
	take_mmproj(t, a, out);
	return LLMC_OK;
}

/* True if `want` names this GGUF: its quantisation, or the end of its name after a separator. */
static int
match_of(const HubGguf *g, const char *want)
{
	const char *base = base_of(g->stem);
	size_t n = strlen(base), k = strlen(want);

	if (strcasecmp(g->tag, want) == 0)
		return 2;
	return n >= k && strcasecmp(base + n - k, want) == 0 &&
	       (n == k || strchr("-._", base[n - k - 1]));
}

static llmc_status
no_such_quant(const HubName *name, const HubGguf *g, size_t n, Arena *a, llmc_error *err)
{
	char list[1400];
	const char **tag = NEW(a, const char *, n + 1), *near = NULL;
	char *want = arena_strdup(a, name->want);

	if (n == 0)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the repository has no file %s and no GGUF file; hf:%s loads "
		                 "its weights, --quantize quantises them",
		                 name->text, name->want, name->repo);
	for (char *c = want; *c; c++)
		*c = (char)toupper((unsigned char)*c);
	for (size_t i = 0; i < n; i++)
		tag[i] = g[i].tag;
	near = nearest_text(want, tag, n);
	list_ggufs(g, n, list, sizeof list);
	return error_set(err, LLMC_E_INPUT,
	                 "%s: no file and no quantisation %s%s%s%s; there are %s", name->text,
	                 name->want, near && *near ? ", did you mean " : "", near ? near : "",
	                 near && *near ? "?" : "", list);
}

/* Choose the GGUF model that the name selects, or the default: the only one, else Q4_K_M. */
static llmc_status
choose_gguf(const HubTree *t, const HubName *name, Arena *a, HubChoice *out, llmc_error *err)
{
	const char *want = name->want ? name->want : "Q4_K_M";
	size_t n, n_found = 0;
	const HubGguf *g = hub_ggufs(t, a, &n), *found = NULL;
	char list[1400];
	int best = 1;

	if (!name->want && n == 1)
		return take_gguf(t, g, name, a, out, err);
	for (size_t i = 0; i < n; i++) {
		int m = match_of(&g[i], want);
		if (m < best)
			continue;
		n_found = m > best ? 1 : n_found + 1;
		best = m;
		found = &g[i];
	}
	if (n_found == 1)
		return take_gguf(t, found, name, a, out, err);
	if (n_found > 1)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the repository has several models of %s; name one by its "
		                 "file, such as hf:%s:%s",
		                 name->text, want, name->repo, found->part[0]->path);
	if (name->want)
		return no_such_quant(name, g, n, a, err);
	list_ggufs(g, n, list, sizeof list);
	return error_set(err, LLMC_E_INPUT,
	                 "%s: several GGUF models and no Q4_K_M; name one as hf:%s:QUANT: %s",
	                 name->text, name->repo, list);
}

/* ---- folders ---- */

/* Files that the loader, the tokenizers and the importer read, besides weights */
static const char *const small_files[] = {
	"config.json",
	"generation_config.json",
	"params.json",
	"tokenizer.json",
	"tokenizer_config.json",
	"special_tokens_map.json",
	"added_tokens.json",
	"vocab.json",
	"vocab.txt",
	"merges.txt",
	"tokenizer.model",
	"spiece.model",
	"ice_text.model",
	"sentencepiece.bpe.model",
	"tekken.json",
	"chat_template.json",
	"chat_template.jinja",
	"modules.json",
	"manifest.json",
	"sentence_bert_config.json",
	"preprocessor_config.json",
	"processor_config.json",
	"config_sentence_transformers.json",
	"quantize_config.json",
	"quant_config.json",
	"hf_quant_config.json",
	"adapter_config.json",
};

static bool
is_pickled(const char *path)
{
	return ends_with(path, ".bin") || ends_with(path, ".pt") || ends_with(path, ".pth");
}

/* True for a file of weights at the top of the repository. */
static bool
is_weights(const char *path, bool safetensors)
{
	return !strchr(path, '/') && strncmp(path, "adapter_model", 13) != 0 &&
	       strcmp(path, "training_args.bin") != 0 && strcmp(path, "optimizer.pt") != 0 &&
	       strncmp(path, "rng_state", 9) != 0 &&
	       (safetensors ? ends_with(path, ".safetensors") : is_pickled(path));
}

/* Add the shards of an index. */
static void
take_shards(const HubTree *t, const char *prefix, bool safetensors, Arena *a, HubChoice *out)
{
	int found = 0, count = 0, no, of;

	for (size_t i = 0; i < t->n; i++) {
		const char *path = t->file[i].path, *dot = strrchr(path, '.');
		if (!is_weights(path, safetensors) || strncmp(path, prefix, strlen(prefix)) != 0)
			continue;
		model_file_part(path, strlen(dot), &no, &of);
		count = of > count ? of : count;
		found++;
		take(out, &t->file[i], a);
	}
	out->whole = found > 0 && found >= count;
}

/* Add the weights of one kind as the loader finds them. False: there are none. */
static bool
take_weights(const HubTree *t, bool safetensors, Arena *a, HubChoice *out)
{
	const char *one = safetensors ? "model.safetensors" : "pytorch_model.bin";
	const HubFile *f = hub_tree_find(t, one), *only = NULL;
	const HubFile *index = hub_tree_find(t, arena_printf(a, "%s.index.json", one));
	size_t n = 0;

	if (!f && index) {
		take(out, index, a);
		take_shards(t, safetensors ? "model-" : "pytorch_model-", safetensors, a, out);
		if (!out->whole && !t->partial)
			take_shards(t, "", safetensors, a, out);
		return true;
	}
	for (size_t i = 0; !f && i < t->n; i++)
		if (is_weights(t->file[i].path, safetensors)) {
			only = &t->file[i];
			n++;
		}
	f = f ? f : n == 1 ? only : NULL;
	if (f) {
		take(out, f, a);
		out->whole = true;
	}
	return f != NULL;
}

/* True for the configuration of a module of sentence-transformers, such as 1_Pooling/config.json */
static bool
is_module_config(const char *path)
{
	const char *slash = strchr(path, '/');

	return path[0] >= '0' && path[0] <= '9' && path[1] == '_' && slash &&
	       strcmp(slash, "/config.json") == 0;
}

/* Add the weights of the modules N_Dense of sentence-transformers. */
static void
take_dense(const HubTree *t, Arena *a, HubChoice *out)
{
	for (int i = 2; i <= 4; i++) {
		const HubFile *w =
		    hub_tree_find(t, arena_printf(a, "%d_Dense/model.safetensors", i));
		w = w ? w : hub_tree_find(t, arena_printf(a, "%d_Dense/pytorch_model.bin", i));
		if (w)
			take(out, w, a);
	}
}

/* Add Meta's consolidated.00.pth, ... */
static void
take_consolidated(const HubTree *t, Arena *a, HubChoice *out)
{
	const HubFile *f;

	for (int i = 0; (f = hub_tree_find(t, arena_printf(a, "consolidated.%02d.pth", i))); i++)
		take(out, f, a);
	out->whole = out->n > 0;
}

/* Add the weights of a PEFT adapter. */
static void
take_adapter(const HubTree *t, Arena *a, HubChoice *out)
{
	const HubFile *f = hub_tree_find(t, "adapter_model.safetensors");

	f = f ? f : hub_tree_find(t, "adapter_model.bin");
	if (f)
		take(out, f, a);
	out->whole = f != NULL;
}

void
hub_choose_folder(const HubTree *t, Arena *a, HubChoice *out)
{
	bool config = hub_tree_find(t, "config.json") != NULL;

	*out = (HubChoice){ .main = "" };
	if (hub_tree_find(t, "adapter_config.json") && !config)
		take_adapter(t, a, out);
	else if (config) {
		if (!take_weights(t, true, a, out))
			take_weights(t, false, a, out);
	} else if (hub_tree_find(t, "params.json"))
		take_consolidated(t, a, out);
	if (out->n == 0)
		return;
	take_dense(t, a, out);
	for (size_t i = 0; i < sizeof small_files / sizeof *small_files; i++) {
		const HubFile *f = hub_tree_find(t, small_files[i]);
		if (f)
			take(out, f, a);
	}
	for (size_t i = 0; i < t->n; i++)
		if (is_module_config(t->file[i].path) ||
		    (ends_with(t->file[i].path, ".tiktoken") && !strchr(t->file[i].path, '/')))
			take(out, &t->file[i], a);
}

/* Return the file that `want` names: by its path, or by its file name if that is unique. */
static const HubFile *
file_named(const HubTree *t, const char *want)
{
	const HubFile *f = hub_tree_find(t, want);
	size_t n = 0;

	if (f || !strchr(want, '.'))
		return f;
	for (size_t i = 0; i < t->n; i++)
		if (strcmp(base_of(t->file[i].path), want) == 0) {
			f = &t->file[i];
			n++;
		}
	return n == 1 ? f : NULL;
}

/* Choose the file that is named, with all parts of a split GGUF. */
static llmc_status
choose_file(const HubTree *t, const HubName *name, const HubFile *f, Arena *a, HubChoice *out,
            llmc_error *err)
{
	size_t n;
	const HubGguf *g = hub_ggufs(t, a, &n);

	for (size_t i = 0; i < n; i++)
		for (int k = 0; k < g[i].n_part; k++)
			if (g[i].part[k] == f)
				return take_gguf(t, &g[i], name, a, out, err);
	take(out, f, a);
	out->main = f->path;
	out->whole = true;
	return LLMC_OK;
}

static llmc_status
choose(const HubTree *t, const HubName *name, Arena *a, HubChoice *out, llmc_error *err)
{
	size_t n;

	*out = (HubChoice){ 0 };
	if (name->want) {
		const HubFile *f = file_named(t, name->want);
		return f ? choose_file(t, name, f, a, out, err) : choose_gguf(t, name, a, out, err);
	}
	hub_choose_folder(t, a, out);
	if (out->n > 0)
		return LLMC_OK;
	hub_ggufs(t, a, &n);
	if (n > 0)
		return choose_gguf(t, name, a, out, err);
	return error_set(err, LLMC_E_INPUT,
	                 "%s: the repository holds no model that llmc reads: neither config.json "
	                 "with weights nor a GGUF file",
	                 name->text);
}

llmc_status
hub_choose(const HubTree *t, const HubName *name, Arena *a, HubChoice *out, llmc_error *err)
{
	enum { MAX_CHOSEN = 4096 };

	TRY(choose(t, name, a, out, err));
	if (out->n > MAX_CHOSEN)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the model has %zu files; at most %d are "
		                 "possible",
		                 name->text, out->n, MAX_CHOSEN);
	return LLMC_OK;
}
