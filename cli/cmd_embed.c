/* llmc embed: vectors of many strings, batched by an engine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"

enum { IN_FLIGHT = 512 };

typedef struct Input {
	int32_t *tok;
	size_t n_tok;
	float *vector; /* [width], NULL until it is known */
} Input;

typedef struct EmbedJob {
	Input *in;
	size_t n, cap;
	llmc_pool pool;
	bool normalize, truncate, json; /* json: one document */
	int32_t context, width;         /* width: number of elements that are written */
	const char *file;               /* for messages */
	const char *prompt;             /* string before each text */
	bool named;                     /* --prompt-name chose it */
} EmbedJob;

static Input *
add(EmbedJob *j)
{
	if (j->n == j->cap) {
		size_t cap = j->cap ? 2 * j->cap : 64;
		Input *in = realloc(j->in, cap * sizeof *in);
		if (!in)
			return NULL;
		j->in = in;
		j->cap = cap;
	}
	j->in[j->n] = (Input){ 0 };
	return &j->in[j->n++];
}

static bool
add_text(EmbedJob *j, const llmc_tokenizer *t, const char *s, size_t n)
{
	llmc_error err = { 0 };
	Input *in = add(j);

	if (!in)
		return complain("out of memory"), false;
	if (!t)
		return complain("this model has no tokenizer: pass token ids"), false;
	Strbuf both = { 0 };
	strbuf_puts(&both, j->prompt);
	strbuf_add(&both, s, n);
	bool ok = !both.failed && tokenize_alloc(t, strbuf_str(&both), both.len,
	                                         LLMC_ADD_SPECIAL | LLMC_PARSE_SPECIAL, &in->tok,
	                                         &in->n_tok, &err) == LLMC_OK;
	if (both.failed)
		snprintf(err.text, sizeof err.text, "out of memory");
	strbuf_release(&both);
	if (ok)
		return true;
	complain("%s: input %zu: %s", j->file, j->n, err.text);
	return false;
}

static bool
add_ids(EmbedJob *j, const json_t *list)
{
	Input *in = add(j);
	const size_t n = json_array_size(list);

	if (j->named)
		return complain("%s: input %zu: token ids have no prompt before them: pass a "
		                "string, or omit --prompt-name",
		                j->file, j->n),
		       false;
	if (!in || !(in->tok = malloc((n + 1) * sizeof *in->tok)))
		return complain("out of memory"), false;
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(list, i);
		if (!json_is_integer(v) || json_integer_value(v) < 0 ||
		    json_integer_value(v) > INT32_MAX)
			return complain("%s: input %zu: element %zu is not a token id", j->file,
			                j->n, i),
			       false;
		in->tok[in->n_tok++] = (int32_t)json_integer_value(v);
	}
	return true;
}

/* Add the input of a line: a string, a list of ids, or an object with either of them as "text" or
 * "input". */
static bool
add_line(EmbedJob *j, const llmc_tokenizer *t, const char *line, size_t n, size_t number)
{
	json_error_t why;
	bool no_memory = false;
	json_t *o = json_parse(line, n, JSON_DECODE_ANY, &why, &no_memory);
	const json_t *v = json_is_object(o) ? json_object_get(o, "text") : o;
	bool ok = false;

	if (json_is_object(o) && !v)
		v = json_object_get(o, "input");
	if (!o)
		complain("%s:%zu: %s", j->file, number, no_memory ? "out of memory" : why.text);
	else if (json_is_string(v))
		ok = add_text(j, t, json_string_value(v), json_string_length(v));
	else if (json_is_array(v))
		ok = add_ids(j, v);
	else
		complain("%s:%zu: expected a string, a list of token ids, or an object with "
		         "\"text\"",
		         j->file, number);
	json_decref(o);
	return ok;
}

static bool
add_lines(EmbedJob *j, const llmc_tokenizer *t, const char *file)
{
	size_t n = 0, number = 1;
	char *all = read_all(file, &n);
	bool ok = all != NULL;

	for (const char *at = all, *end; ok && at < all + n; at = end + 1, number++) {
		end = memchr(at, '\n', (size_t)(all + n - at));
		end = end ? end : all + n;
		if (strspn(at, " \t\r") < (size_t)(end - at))
			ok = add_line(j, t, at, (size_t)(end - at), number);
	}
	free(all);
	return ok;
}

static bool
check_lengths(EmbedJob *j)
{
	for (size_t i = 0; i < j->n; i++) {
		Input *in = &j->in[i];
		if (!in->n_tok)
			return complain("%s: input %zu is empty", j->file, i + 1), false;
		if (in->n_tok <= (size_t)j->context)
			continue;
		if (!j->truncate)
			return complain("%s: input %zu has %zu tokens, the context holds %d; use "
			                "--truncate or a larger --context",
			                j->file, i + 1, in->n_tok, j->context),
			       false;
		/* keep the last token, by which this model ends prompts */
		in->tok[j->context - 1] = in->tok[in->n_tok - 1];
		in->n_tok = (size_t)j->context;
	}
	return true;
}

static bool
take(EmbedJob *j, const llmc_event *ev)
{
	const size_t bytes = (size_t)j->width * sizeof(float);
	Input *in = &j->in[(size_t)(uintptr_t)ev->user];
	double square = 0;

	in->vector = malloc(bytes);
	if (!in->vector || ev->n_vector < j->width)
		return false;
	memcpy(in->vector, ev->vector, bytes);
	if (ev->n_vector == j->width || !j->normalize)
		return true;
	for (int32_t i = 0; i < j->width; i++)
		square += (double)in->vector[i] * (double)in->vector[i];
	for (int32_t i = 0; square > 0 && i < j->width; i++)
		in->vector[i] = (float)((double)in->vector[i] / sqrt(square));
	return true;
}

/* Print vectors [from, n) up to the first one that is not known yet; returns the index of that
 * one. */
static size_t
print_ready(const EmbedJob *j, size_t from)
{
	Strbuf b = { 0 };

	for (; from < j->n && j->in[from].vector; from++) {
		strbuf_clear(&b);
		if (j->json)
			strbuf_puts(&b, from ? "," : "{\"embeddings\":[");
		json_printf(&b, "{\"index\":%lld,\"n_tokens\":%lld,\"embedding\":[",
		            (long long)from, (long long)j->in[from].n_tok);
		for (int32_t i = 0; i < j->width; i++)
			json_printf(&b, i ? ",%g" : "%g", (double)j->in[from].vector[i]);
		strbuf_puts(&b, j->json && from + 1 == j->n ? "]}]}" : "]}");
		puts(strbuf_str(&b));
	}
	strbuf_release(&b);
	return from;
}

static llmc_status
run_all(EmbedJob *j, llmc_engine *e, bool print, llmc_error *err)
{
	llmc_event ev = LLMC_INIT(llmc_event);
	llmc_status status = LLMC_OK;
	size_t sent = 0, done = 0, printed = 0;

	while (status == LLMC_OK && done < j->n) {
		while (sent < j->n && sent - done < IN_FLIGHT) {
			llmc_request r = LLMC_INIT(llmc_request);
			int64_t id;
			r.tok = j->in[sent].tok;
			r.n_tok = j->in[sent].n_tok;
			r.pool = j->pool;
			r.normalize = j->normalize;
			r.user = (void *)(uintptr_t)sent;
			status = llmc_submit(e, &r, &id, err);
			if (status != LLMC_OK)
				break;
			sent++;
		}
		if (status == LLMC_E_BUSY && sent > done)
			status = LLMC_OK;
		if (status == LLMC_OK)
			status = llmc_next(e, LLMC_ANY, -1, &ev, err);
		if (status != LLMC_OK)
			break;
		if (ev.kind == LLMC_EVENT_ERROR) {
			status = ev.status;
			snprintf(err->text, sizeof err->text, "%s", ev.text);
		} else if (ev.kind == LLMC_EVENT_FINISH) {
			status = take(j, &ev) ? LLMC_OK : LLMC_E_MEMORY;
			done++;
		}
		if (print)
			printed = print_ready(j, printed);
		if (interrupted())
			status = LLMC_E_CANCELLED;
	}
	llmc_event_release(&ev);
	return status;
}

static int
write_all(const EmbedJob *j, const char *path)
{
	float *x = malloc((j->n * (size_t)j->width + 1) * sizeof *x);
	bool ok = x != NULL;

	for (size_t i = 0; ok && i < j->n; i++)
		memcpy(x + i * (size_t)j->width, j->in[i].vector, (size_t)j->width * sizeof *x);
	ok = ok && write_npy(path, x, j->n, (size_t)j->width);
	free(x);
	if (!ok)
		complain("%s: cannot write the vectors", path);
	return ok ? 0 : EXIT_MACHINE;
}

/* Choose pooling, normalisation and width. */
static bool
choose(EmbedJob *j, const llmc_model *m, const char *pool, bool raw, bool unit, int32_t dimensions)
{
	static const char *const kinds[] = { "none", "last", "mean", "cls" };
	llmc_model_info info = LLMC_INIT(llmc_model_info);

	llmc_info(m, &info);
	if (info.output == LLMC_OUTPUT_LOGITS)
		return complain("this model generates text: --set head.kind=hidden makes vectors "
		                "of its last hidden states"),
		       false;
	j->pool = info.pool;
	for (int i = LLMC_POOL_LAST; pool && i <= LLMC_POOL_CLS; i++)
		if (!strcmp(pool, kinds[i]))
			j->pool = (llmc_pool)i, pool = NULL;
	if (pool)
		return complain("--pool %s: expected mean, cls or last", pool), false;
	if (j->pool == LLMC_POOL_NONE)
		return complain("this model does not specify its pooling: add --pool mean, cls or "
		                "last"),
		       false;
	j->normalize = unit || (info.normalize && !raw);
	if (dimensions < 0 || dimensions > info.out_width)
		return complain("--dimensions %d: this model's vectors have %d elements",
		                dimensions, info.out_width),
		       false;
	j->width = dimensions ? dimensions : info.out_width;
	return true;
}

/* Choose the prompt by its name, or the model's usual one. */
static bool
choose_prompt(EmbedJob *j, const llmc_model *m, const char *name)
{
	size_t n;
	const llmc_input_prompt *list = llmc_input_prompts(m, &n);
	Strbuf names = { 0 };

	j->prompt = "";
	j->named = name != NULL;
	for (size_t i = 0; i < n; i++)
		if (name ? !strcmp(name, list[i].name) : list[i].usual) {
			j->prompt = list[i].text;
			return true;
		}
	if (!name)
		return true;
	for (size_t i = 0; i < n; i++)
		strbuf_printf(&names, "%s%s", i ? ", " : "", list[i].name);
	complain("--prompt-name %s: this model's prompts are: %s", name,
	         n ? strbuf_str(&names) : "none");
	strbuf_release(&names);
	return false;
}

static int
embed(int argc, char **argv)
{
	Common c = { 0 };
	List text = { 0 };
	const char *pool = NULL, *out = NULL, *prompt = NULL, *args[2] = { NULL };
	bool raw = false, unit = false;
	int32_t dimensions = 0;
	EmbedJob j = { .file = "--text" };
	const Opt opt[] = {
		{ OPT_GROUP, 0, "Vectors", NULL, NULL, NULL },
		{ OPT_LIST, 0, "text", "TEXT", &text, "a string to embed; may be repeated" },
		{ OPT_TEXT, 'o', "output", "FILE.npy", &out,
		  "write a float32 array [inputs, width] instead of JSON Lines" },
		{ OPT_TEXT, 0, "pool", "mean|cls|last", &pool, "pooling [the model's own]" },
		{ OPT_TEXT, 0, "prompt-name", "NAME", &prompt,
		  "the model's prompt before each text, such as query or document [its default]" },
		{ OPT_FLAG, 0, "normalize", NULL, &unit, "divide vectors by their length" },
		{ OPT_FLAG, 0, "raw", NULL, &raw, "do not, even if the model does" },
		{ OPT_INT, 0, "dimensions", "N", &dimensions,
		  "write the first N elements of each vector" },
		{ OPT_FLAG, 0, "truncate", NULL, &j.truncate,
		  "truncate inputs that are longer than the context" },
		OPT_FIT(c),
		OPT_COMMON(c),
	};
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_error err = { 0 };
	llmc_model *m = NULL;
	llmc_engine *e = NULL;
	int code = EXIT_INPUT;
	const size_t n = OPT_PARSE(&cmd_embed, opt, argc, argv, args);

	if (n == 0)
		return opt_usage_error(&cmd_embed, NO_MODEL);
	if ((n == 2) == (text.n > 0))
		return opt_usage_error(&cmd_embed, n == 2 ? "a file and --text exclude each other"
		                                          : "name a file (- is standard input), or "
		                                            "give --text");
	if ((unit && raw) || (out && c.json))
		return opt_usage_error(&cmd_embed, unit && raw
		                                       ? "--normalize and --raw exclude each other"
		                                       : "--output and --json exclude each other");
	interrupt_install();
	llmc_limits lim = limits_of(&c);
	lim.seqs = lim.seqs ? lim.seqs : 64;
	o.limits = &lim;
	o.max_concurrent_requests = IN_FLIGHT;
	c.fit = &lim;
	llmc_status s = open_model(&c, args[0], false, &m, &err);
	if (s == LLMC_OK &&
	    (!choose(&j, m, pool, raw, unit, dimensions) || !choose_prompt(&j, m, prompt)))
		goto out;
	if (s == LLMC_OK)
		s = llmc_engine_open(m, &o, &e, &err);
	if (s != LLMC_OK) {
		code = fail_with(&err);
		goto out;
	}
	j.context = llmc_engine_limits(e)->context;
	j.json = c.json;
	const llmc_tokenizer *tok = llmc_model_tokenizer(m);
	bool ok = true;
	for (size_t i = 0; ok && i < text.n; i++)
		ok = add_text(&j, tok, text.v[i], strlen(text.v[i]));
	if (n == 2) {
		j.file = args[1];
		ok = add_lines(&j, tok, args[1]);
	}
	if (!ok || !check_lengths(&j))
		goto out;
	s = run_all(&j, e, !out, &err);
	code = s == LLMC_E_CANCELLED ? EXIT_INTERRUPTED
	       : s != LLMC_OK        ? fail_with(&err)
	       : out                 ? write_all(&j, out)
	                             : 0;
out:
	llmc_engine_close(e, 0);
	llmc_close(m);
	for (size_t i = 0; i < j.n; i++) {
		free(j.in[i].tok);
		free(j.in[i].vector);
	}
	free(j.in);
	free(text.v);
	free(c.set.v);
	return code;
}

const Command cmd_embed = {
	"embed",
	"MODEL [FILE | --text T] [options]",
	"vectors of strings from an embedding model",
	"  llmc embed bge-small/ --text \"a first sentence\" --text \"a second\"\n"
	"  llmc embed bge-small/ sentences.jsonl -o vectors.npy\n"
	"  llmc embed model.gguf - --set head.kind=hidden --pool last < sentences.jsonl\n",
	embed,
};
