#include "serve/dialects/fim.h"

#include <stdlib.h>
#include <string.h>

#include "serve/dialects/tokenize.h"

static void
ids_mark(Ids *to, int32_t id)
{
	if (id >= 0)
		ids_add(to, &id, 1);
}

static bool
ids_text(Generation *g, Ids *to, const char *text, size_t n, int flags, Problem *p)
{
	int32_t *id = NULL;
	size_t n_id = 0;

	/* no limit here: the parts are checked or cut together later */
	if (n && !tokenize_prompt(g->model, text, n, flags, SIZE_MAX / 8, &id, &n_id, p))
		return false;
	ids_add(to, id, n_id);
	free(id);
	return !to->failed || problem_memory(p);
}

/* Append text that continues other text. Some tokenizers put a space before each input, which is
 * wrong here. So the text is tokenized after a symbol, and the symbol's tokens are removed. */
static bool
ids_continued(Generation *g, Ids *to, const char *text, size_t n, Problem *p)
{
	static const char symbol[] = "\u263a", space[] = "\u2581";
	Ids alone = { 0 }, both = { 0 };
	Strbuf b = { 0 };
	const char *first = NULL;

	bool ok = ids_text(g, &alone, symbol, sizeof symbol - 1, 0, p);
	if (ok && alone.n)
		first = llmc_token_text(g->model->back.tok, alone.id[0]);
	bool spaced = first && !strncmp(first, space, sizeof space - 1);
	strbuf_puts(&b, symbol);
	strbuf_add(&b, text, n);
	ok = ok && (!b.failed || problem_memory(p)) &&
	     (!spaced || ids_text(g, &both, b.data, b.len, 0, p));
	strbuf_release(&b);
	if (ok && spaced && both.n >= alone.n &&
	    !memcmp(both.id, alone.id, alone.n * sizeof *alone.id))
		ids_add(to, both.id + alone.n, both.n - alone.n);
	else if (ok)
		ok = ids_text(g, to, text, n, 0, p);
	free(alone.id);
	free(both.id);
	return ok && (!to->failed || problem_memory(p));
}

static bool
ids_json(Generation *g, Ids *to, const json_t *v, int flags, Problem *p)
{
	int32_t *id = NULL;
	size_t n = 0;

	if (json_is_string(v))
		return ids_text(g, to, json_string_value(v), json_string_length(v), flags, p);
	const bool ok = token_ids(v, g->model->back.info.vocab, "prompt", &id, &n, p);
	if (ok)
		ids_add(to, id, n);
	free(id);
	return ok && (!to->failed || problem_memory(p));
}

/* Append other files before the prompt: with the marks of the format or, without such marks,
 * separated by a line as in llama.cpp. */
static bool
add_extra(Generation *g, Ids *to, const json_t *extra, const llmc_fim *f, Problem *p)
{
	static const char line[] = "\n\n--- snippet ---\n\n";
	bool ok = true;

	if (json_array_size(extra) == 0)
		return true;
	if (f->repo >= 0) {
		ids_mark(to, f->repo);
		ok = ids_text(g, to, "myproject\n", 10, 0, p);
	}
	for (size_t i = 0; i <= json_array_size(extra) && ok; i++) {
		const json_t *one = json_array_get(extra, i);
		const char *name = json_string_value(json_object_get(one, "filename"));
		const json_t *text = json_object_get(one, "text");
		Strbuf b = { 0 };
		if (f->file < 0) {
			if (one)
				strbuf_puts(&b, line);
		} else {
			/* the file of the prompt is the last one */
			ids_mark(to, f->file);
			strbuf_printf(&b, "%s\n", name ? name : one ? "tmp" : "filename");
		}
		ok = !b.failed || problem_memory(p);
		ok = ok && ids_text(g, to, strbuf_str(&b), b.len, 0, p) &&
		     (!one || ids_json(g, to, text, 0, p));
		strbuf_release(&b);
	}
	return ok;
}

/* Cut the parts to `limit` tokens in total. First cut the beginning of the other files. Then cut
 * the beginning of the prefix, to three quarters of the limit, and the end of the suffix, to one
 * quarter. Space that one of both leaves goes to the other.
 */
static void
cut(Ids *extra, Ids *prefix, Ids *suffix, size_t limit)
{
	size_t most = limit > prefix->n + suffix->n ? limit - prefix->n - suffix->n : 0;

	if (extra->n > most) {
		if (most)
			memmove(extra->id, extra->id + extra->n - most, most * sizeof *extra->id);
		extra->n = most;
	}
	if (prefix->n + suffix->n <= limit)
		return;
	size_t after = suffix->n < limit / 4           ? suffix->n
	               : prefix->n < limit - limit / 4 ? limit - prefix->n
	                                               : limit / 4,
	       before = limit - after < prefix->n ? limit - after : prefix->n;
	memmove(prefix->id, prefix->id + prefix->n - before, before * sizeof *prefix->id);
	prefix->n = before;
	suffix->n = after < suffix->n ? after : suffix->n;
}

/* Add the tokens that end the middle part to the stop tokens. */
static bool
add_stops(Generation *g, const llmc_fim *f, Problem *p)
{
	const int32_t n = g->ep.n_stop_tokens;
	int32_t *more = realloc(g->stop_tokens, ((size_t)n + (size_t)f->n_stop + 1) * sizeof *more);

	if (!more)
		return problem_memory(p);
	g->stop_tokens = more;
	for (int32_t i = 0; i < f->n_stop; i++) {
		bool known = f->stop[i] >= g->model->back.info.vocab;
		for (int32_t k = 0; k < g->ep.n_stop_tokens; k++)
			known |= more[k] == f->stop[i];
		if (!known)
			more[g->ep.n_stop_tokens++] = f->stop[i];
	}
	return true;
}

/* Does the tokenizer add a BOS token to a prompt? */
static bool
has_bos(const Generation *g)
{
	int32_t first[4];
	size_t n;

	return g->model->back.info.bos >= 0 &&
	       llmc_tokenize(g->model->back.tok, "", 0, LLMC_ADD_SPECIAL, first, 4, &n, NULL) ==
	           LLMC_OK &&
	       n > 0 && first[0] == g->model->back.info.bos;
}

bool
fim_prompt(Generation *g, SubRequest *sub, const FimParts *parts, Problem *p)
{
	llmc_fim f = LLMC_INIT(llmc_fim);
	Ids all = { 0 }, extra = { 0 }, prefix = { 0 }, suffix = { 0 };
	const json_t *after = parts->suffix;

	if (!g->model->back.tok || !llmc_fim_tokens(g->model->back.tok, &f))
		return problem(
		    p, 400, parts->param,
		    "'%s' is not supported by this model: its vocabulary has no tokens "
		    "for fill-in-the-middle. Send the text before the gap as 'prompt' of "
		    "/v1/completions.",
		    parts->param);
	bool ok =
	    ids_json(g, &prefix, parts->prefix, 0, p) &&
	    ids_json(g, &prefix, parts->more, LLMC_PARSE_SPECIAL, p) &&
	    ids_continued(g, &suffix, json_string_value(after), json_string_length(after), p) &&
	    add_extra(g, &extra, parts->extra, &f, p) && add_stops(g, &f, p);
	if (ok) {
		const size_t marks = 4; /* the marks of BOS, prefix, suffix and middle */
		if (parts->room)
			cut(&extra, &prefix, &suffix,
			    parts->room > marks ? parts->room - marks : 0);
		if (has_bos(g))
			ids_mark(&all, g->model->back.info.bos);
		ids_add(&all, extra.id, extra.n);
		if (f.suffix_first) {
			ids_mark(&all, f.suffix);
			ids_add(&all, suffix.id, suffix.n);
		}
		ids_mark(&all, f.prefix);
		ids_add(&all, prefix.id, prefix.n);
		if (!f.suffix_first) {
			ids_mark(&all, f.suffix);
			ids_add(&all, suffix.id, suffix.n);
		}
		ids_mark(&all, f.middle);
		ok = !all.failed || problem_memory(p);
	}
	free(extra.id);
	free(prefix.id);
	free(suffix.id);
	sub->tok = all.id;
	sub->n_tok = all.n;
	return ok;
}
