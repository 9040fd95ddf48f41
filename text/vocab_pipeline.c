/* Normalizers, pre-tokenizers, post-processor and decoders of tokenizer.json. Unknown types are
 * rejected with their name, because with a slightly wrong tokenizer a model gives worse output
 * without any error. */
#include "base/base64.h"
#include "text/text.h"

#include <string.h>

enum { MAX_DEPTH = 32 };

static const char *
str(const json_t *o, const char *key, const char *otherwise)
{
	const char *s = json_string_value(json_object_get(o, key));
	return s ? s : otherwise;
}

static ByteSpan
span(llmc_tokenizer *t, const json_t *v)
{
	if (!json_is_string(v))
		return (ByteSpan){ "", 0 };
	return span_copy(&t->arena, (ByteSpan){ json_string_value(v), json_string_length(v) });
}

static bool
flag(const json_t *o, const char *key, bool otherwise)
{
	const json_t *v = json_object_get(o, key);
	return json_is_boolean(v) ? json_is_true(v) : otherwise;
}

static llmc_status
unknown(const char *what, const char *type, llmc_error *err)
{
	return error_set(err, LLMC_E_INPUT, "%s: type \"%s\" is not supported", what, type);
}

/* Reads a pattern: {"Regex": "..."}, {"String": "..."} or a plain string */
static llmc_status
pattern(llmc_tokenizer *t, const char *what, const json_t *p, pcre2_code **regex, ByteSpan *text,
        llmc_error *err)
{
	const json_t *re = json_object_get(p, "Regex"),
	             *s = json_is_string(p) ? p : json_object_get(p, "String");

	if (json_is_string(re))
		return regex_compile(t, what,
		                     (ByteSpan){ json_string_value(re), json_string_length(re) },
		                     regex, err);
	if (!json_is_string(s))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: pattern is neither {\"Regex\": ...} nor {\"String\": ...}",
		                 what);
	ByteSpan lit = { json_string_value(s), json_string_length(s) };
	if (text) {
		*text = span(t, s);
		*regex = NULL;
		return LLMC_OK;
	}
	/* the string as a regex in which every character is escaped */
	char *q = NEW(&t->arena, char, lit.n * 2 + 8);
	size_t n = 0;
	for (size_t i = 0; i < lit.n; i++) {
		if (strchr("\\^$.[]|()?*+{}-#", lit.s[i]) && lit.s[i])
			q[n++] = '\\';
		q[n++] = lit.s[i];
	}
	if (!n) {
		memcpy(q, "(?!)", 4);
		n = 4;
	}
	return regex_compile(t, what, (ByteSpan){ q, n }, regex, err);
}

ByteSpan
text_base64(Arena *a, ByteSpan in)
{
	char *out = NEW(a, char, in.n / 4 * 3 + 6);
	size_t at;
	const ptrdiff_t n = base64_decode(in.s, in.n, (uint8_t *)out, &at);

	return (ByteSpan){ out, n < 0 ? 0 : (size_t)n };
}

static llmc_status
load_norm(llmc_tokenizer *t, const json_t *o, int depth, llmc_error *err)
{
	static const struct {
		const char *name;
		NormalizerKind kind;
	} plain[] = {
		{ "NFC", NORMALIZE_NFC },
		{ "NFD", NORMALIZE_NFD },
		{ "NFKC", NORMALIZE_NFKC },
		{ "NFKD", NORMALIZE_NFKD },
		{ "Nmt", NORMALIZE_NMT },
		{ "Lowercase", NORMALIZE_LOWER },
		{ "ByteLevel", NORMALIZE_BYTELEVEL },
		{ "StripAccents", NORMALIZE_STRIP_ACCENTS },
	};
	const char *type = str(o, "type", "");
	size_t i;
	json_t *item;

	if (json_is_null(o) || !o)
		return LLMC_OK;
	if (depth > MAX_DEPTH)
		return error_set(err, LLMC_E_INPUT, "normalizer: nested deeper than %d", MAX_DEPTH);
	for (i = 0; i < sizeof plain / sizeof *plain; i++) {
		if (strcmp(type, plain[i].name) == 0) {
			normalizer_add(t, plain[i].kind);
			return LLMC_OK;
		}
	}
	if (strcmp(type, "Sequence") == 0) {
		json_array_foreach (json_object_get(o, "normalizers"), i, item)
			TRY(load_norm(t, item, depth + 1, err));
	} else if (strcmp(type, "Strip") == 0) {
		Normalizer *n = normalizer_add(t, NORMALIZE_STRIP);
		n->left = flag(o, "strip_left", true);
		n->right = flag(o, "strip_right", true);
	} else if (strcmp(type, "Prepend") == 0) {
		ByteSpan s = span(t, json_object_get(o, "prepend"));
		normalizer_add(t, NORMALIZE_PREPEND)->content = s;
	} else if (strcmp(type, "Replace") == 0) {
		pcre2_code *re;
		ByteSpan s = span(t, json_object_get(o, "content"));
		TRY(pattern(t, "normalizer Replace", json_object_get(o, "pattern"), &re, NULL,
		            err));
		Normalizer *n = normalizer_add(t, NORMALIZE_REPLACE);
		n->regex = re;
		n->content = s;
		n->n_literal =
		    json_string_length(json_object_get(json_object_get(o, "pattern"), "String"));
	} else if (strcmp(type, "BertNormalizer") == 0) {
		Normalizer *n = normalizer_add(t, NORMALIZE_BERT);
		n->clean = flag(o, "clean_text", true);
		n->spread = flag(o, "handle_chinese_chars", true);
		n->lower = flag(o, "lowercase", true);
		n->accents = flag(o, "strip_accents", n->lower);
	} else if (strcmp(type, "Precompiled") == 0) {
		const ByteSpan coded = span(t, json_object_get(o, "precompiled_charsmap")),
		               blob = text_base64(&t->arena, coded);
		Charsmap map;
		if (coded.n && !blob.n)
			return error_set(err, LLMC_E_INPUT,
			                 "normalizer Precompiled: precompiled_charsmap is no "
			                 "base64");
		if (!blob.n)
			return LLMC_OK;
		TRY(charsmap_read(&t->arena, blob, &map, err));
		normalizer_add(t, NORMALIZE_PRECOMPILED)->map = map;
	} else {
		return unknown("normalizer", type, err);
	}
	return LLMC_OK;
}

static llmc_status
split_mode(const char *what, const char *name, SplitMode *out, llmc_error *err)
{
	static const char *const names[] = { "Removed", "Isolated", "MergedWithPrevious",
		                             "MergedWithNext", "Contiguous" };
	for (int i = 0; i < 5; i++) {
		if (strcmp(name, names[i]) == 0) {
			*out = (SplitMode)i;
			return LLMC_OK;
		}
	}
	return error_set(err, LLMC_E_INPUT, "%s: behavior \"%s\" is not supported", what, name);
}

static llmc_status
pre_regex(llmc_tokenizer *t, const char *what, const char *expr, SplitMode mode, bool invert,
          llmc_error *err)
{
	pcre2_code *re;

	TRY(regex_compile(t, what, (ByteSpan){ expr, strlen(expr) }, &re, err));
	PreTokenizer *p = pre_add(t, PRE_SPLIT);
	p->regex = re;
	p->mode = mode;
	p->invert = invert;
	return LLMC_OK;
}

void
pre_class(llmc_tokenizer *t, CharClass cls, SplitMode mode)
{
	PreTokenizer *p = pre_add(t, PRE_CLASS);
	p->cls = cls;
	p->mode = mode;
}

static Prepend
prepend_scheme(const json_t *o)
{
	const char *scheme =
	    str(o, "prepend_scheme", flag(o, "add_prefix_space", true) ? "always" : "never");
	return strcmp(scheme, "always") == 0  ? PREPEND_ALWAYS
	       : strcmp(scheme, "first") == 0 ? PREPEND_FIRST
	                                      : PREPEND_NEVER;
}

static llmc_status
load_metaspace(llmc_tokenizer *t, const json_t *o, llmc_error *err)
{
	ByteSpan r = span(t, json_object_get(o, "replacement"));

	if (!r.n || r.n > 4 || utf8_count(r.s, r.n) != 1)
		return error_set(err, LLMC_E_INPUT,
		                 "Metaspace: replacement \"%s\" is not one character", r.s);
	char *escaped = arena_printf(&t->arena, "\\Q%s\\E", r.s);
	pcre2_code *re;
	TRY(regex_compile(t, "Metaspace", (ByteSpan){ escaped, strlen(escaped) }, &re, err));
	PreTokenizer *p = pre_add(t, PRE_METASPACE);
	p->regex = re;
	p->mode = SPLIT_NEXT;
	p->replacement = r;
	p->prepend = prepend_scheme(o);
	p->split = flag(o, "split", true);
	return LLMC_OK;
}

#define GPT2_SPLIT                                                                                 \
	"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static llmc_status
load_pre(llmc_tokenizer *t, const json_t *o, int depth, llmc_error *err)
{
	const char *type = str(o, "type", "");
	SplitMode mode = SPLIT_ISOLATED;
	size_t i;
	json_t *item;

	if (json_is_null(o) || !o)
		return LLMC_OK;
	if (depth > MAX_DEPTH)
		return error_set(err, LLMC_E_INPUT, "pre_tokenizer: nested deeper than %d",
		                 MAX_DEPTH);
	if (strcmp(type, "Sequence") == 0) {
		json_array_foreach (json_object_get(o, "pretokenizers"), i, item)
			TRY(load_pre(t, item, depth + 1, err));
	} else if (strcmp(type, "ByteLevel") == 0) {
		if (flag(o, "add_prefix_space", true))
			pre_add(t, PRE_PREFIX_SPACE);
		if (flag(o, "use_regex", true))
			TRY(pre_regex(t, "pre_tokenizer ByteLevel", GPT2_SPLIT, SPLIT_ISOLATED,
			              false, err));
		pre_add(t, PRE_BYTES);
	} else if (strcmp(type, "Split") == 0) {
		pcre2_code *re;
		TRY(split_mode("pre_tokenizer Split", str(o, "behavior", ""), &mode, err));
		TRY(pattern(t, "pre_tokenizer Split", json_object_get(o, "pattern"), &re, NULL,
		            err));
		PreTokenizer *p = pre_add(t, PRE_SPLIT);
		p->regex = re;
		p->mode = mode;
		p->invert = flag(o, "invert", false);
	} else if (strcmp(type, "Digits") == 0) {
		pre_class(t, CLASS_DIGIT,
		          flag(o, "individual_digits", false) ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
	} else if (strcmp(type, "Punctuation") == 0) {
		TRY(split_mode("pre_tokenizer Punctuation", str(o, "behavior", "Isolated"), &mode,
		               err));
		pre_class(t, CLASS_PUNCT, mode);
	} else if (strcmp(type, "WhitespaceSplit") == 0) {
		pre_class(t, CLASS_SPACE, SPLIT_REMOVED);
	} else if (strcmp(type, "BertPreTokenizer") == 0) {
		pre_class(t, CLASS_SPACE, SPLIT_REMOVED);
		pre_class(t, CLASS_PUNCT, SPLIT_ISOLATED);
	} else if (strcmp(type, "Whitespace") == 0) {
		/* \w+|[^\w\s]+ with the classes of Unicode, from which those of PCRE differ */
		pre_class(t, CLASS_SPACE, SPLIT_REMOVED);
		pre_class(t, CLASS_WORD, SPLIT_CONTIGUOUS);
	} else if (strcmp(type, "Metaspace") == 0) {
		TRY(load_metaspace(t, o, err));
	} else if (strcmp(type, "CharDelimiterSplit") == 0) {
		ByteSpan d = span(t, json_object_get(o, "delimiter"));
		size_t len = 0;
		int32_t cp = d.n ? utf8_next(d.s, d.n, &len) : -1;
		if (cp < 0 || len != d.n)
			return error_set(
			    err, LLMC_E_INPUT,
			    "CharDelimiterSplit: delimiter \"%s\" is not one character", d.s);
		pre_class(t, CLASS_CHAR, SPLIT_REMOVED);
		t->pre[t->n_pre - 1].cp = (uint32_t)cp;
	} else {
		return unknown("pre_tokenizer", type, err);
	}
	return LLMC_OK;
}

static llmc_status
load_dec(llmc_tokenizer *t, const json_t *o, int depth, llmc_error *err)
{
	const char *type = str(o, "type", "");
	size_t i, len;
	json_t *item;

	if (json_is_null(o) || !o)
		return LLMC_OK;
	if (depth > MAX_DEPTH)
		return error_set(err, LLMC_E_INPUT, "decoder: nested deeper than %d", MAX_DEPTH);
	if (strcmp(type, "Sequence") == 0) {
		json_array_foreach (json_object_get(o, "decoders"), i, item)
			TRY(load_dec(t, item, depth + 1, err));
	} else if (strcmp(type, "ByteLevel") == 0) {
		dec_add(t, DEC_BYTELEVEL);
	} else if (strcmp(type, "ByteFallback") == 0) {
		dec_add(t, DEC_BYTE_FALLBACK);
	} else if (strcmp(type, "Fuse") == 0) {
		dec_add(t, DEC_FUSE);
	} else if (strcmp(type, "Metaspace") == 0) {
		ByteSpan r = span(t, json_object_get(o, "replacement"));
		int32_t cp = r.n ? utf8_next(r.s, r.n, &len) : -1;
		if (cp < 0 || len != r.n)
			return error_set(
			    err, LLMC_E_INPUT,
			    "decoder Metaspace: replacement \"%s\" is not one character", r.s);
		Dec *d = dec_add(t, DEC_METASPACE);
		d->cp = (uint32_t)cp;
		d->prepend = prepend_scheme(o);
	} else if (strcmp(type, "Replace") == 0) {
		pcre2_code *re;
		ByteSpan text = { 0 }, content = span(t, json_object_get(o, "content"));
		TRY(pattern(t, "decoder Replace", json_object_get(o, "pattern"), &re, &text, err));
		Dec *d = dec_add(t, DEC_REPLACE);
		d->regex = re;
		d->pattern = text;
		d->content = content;
	} else if (strcmp(type, "Strip") == 0) {
		ByteSpan c = span(t, json_object_get(o, "content"));
		int32_t cp = c.n ? utf8_next(c.s, c.n, &len) : -1;
		json_int_t start = json_integer_value(json_object_get(o, "start"));
		json_int_t stop = json_integer_value(json_object_get(o, "stop"));
		if (cp < 0 || len != c.n || start < 0 || stop < 0 || start > 1000 || stop > 1000)
			return error_set(err, LLMC_E_INPUT,
			                 "decoder Strip: content is not one character, or start or "
			                 "stop is not in 0 to 1000");
		Dec *d = dec_add(t, DEC_STRIP);
		d->cp = (uint32_t)cp;
		d->start = (int)start;
		d->stop = (int)stop;
	} else if (strcmp(type, "WordPiece") == 0) {
		ByteSpan s = span(t, json_object_get(o, "prefix"));
		Dec *d = dec_add(t, DEC_WORDPIECE);
		d->pattern = s;
		d->clean = flag(o, "cleanup", true);
	} else if (strcmp(type, "BPEDecoder") == 0) {
		ByteSpan s = span(t, json_object_get(o, "suffix"));
		Dec *d = dec_add(t, DEC_SUFFIX);
		d->pattern = s;
		d->content = (ByteSpan){ " ", 1 };
	} else {
		return unknown("decoder", type, err);
	}
	return LLMC_OK;
}

void
ids_push(llmc_tokenizer *t, int32_t **v, size_t *n, int32_t id)
{
	int32_t *p = NEW(&t->arena, int32_t, *n + 1);

	if (*n)
		memcpy(p, *v, *n * sizeof *p);
	p[(*n)++] = id;
	*v = p;
}

static llmc_status
special_id(llmc_tokenizer *t, const json_t *id, llmc_error *err)
{
	if (!json_is_integer(id) || json_integer_value(id) < 0 ||
	    json_integer_value(id) >= t->n_ids)
		return error_set(err, LLMC_E_INPUT,
		                 "post_processor: a special token has no id in 0 to %d",
		                 t->n_ids - 1);
	return LLMC_OK;
}

/* Reads the special tokens of a template: those before the first sequence into id[0], those after
 * it into id[1], and so on. */
static llmc_status
template_ids(llmc_tokenizer *t, const json_t *o, const char *key, int n_place, int32_t **to[],
             size_t *n_to[], llmc_error *err)
{
	const json_t *special = json_object_get(o, "special_tokens");
	int place = 0;
	size_t i, k;
	json_t *item, *id;

	json_array_foreach (json_object_get(o, key), i, item) {
		const json_t *tok = json_object_get(item, "SpecialToken");
		if (json_object_get(item, "Sequence")) {
			place += place + 1 < n_place;
			continue;
		}
		const char *name = str(tok, "id", "");
		const json_t *ids = json_object_get(json_object_get(special, name), "ids");
		if (!json_array_size(ids))
			return error_set(err, LLMC_E_INPUT,
			                 "post_processor TemplateProcessing: no ids for the "
			                 "special token \"%s\"",
			                 name);
		json_array_foreach (ids, k, id) {
			TRY(special_id(t, id, err));
			ids_push(t, to[place], n_to[place], (int32_t)json_integer_value(id));
		}
	}
	return LLMC_OK;
}

static llmc_status
load_template(llmc_tokenizer *t, const json_t *o, llmc_error *err)
{
	if (!json_is_array(json_object_get(o, "single")))
		return error_set(err, LLMC_E_INPUT,
		                 "post_processor TemplateProcessing: no array \"single\"");
	TRY(template_ids(t, o, "single", 2, (int32_t **[]){ &t->prefix, &t->suffix },
	                 (size_t *[]){ &t->n_prefix, &t->n_suffix }, err));
	t->has_pair = json_array_size(json_object_get(o, "pair")) > 0;
	return template_ids(t, o, "pair", 3,
	                    (int32_t **[]){ &t->pair[0], &t->pair[1], &t->pair[2] },
	                    (size_t *[]){ &t->n_pair[0], &t->n_pair[1], &t->n_pair[2] }, err);
}

static llmc_status
load_post(llmc_tokenizer *t, const json_t *o, int depth, llmc_error *err)
{
	const char *type = str(o, "type", "");
	size_t i;
	json_t *item;

	if (json_is_null(o) || !o)
		return LLMC_OK;
	if (depth > MAX_DEPTH)
		return error_set(err, LLMC_E_INPUT, "post_processor: nested deeper than %d",
		                 MAX_DEPTH);
	if (strcmp(type, "Sequence") == 0) {
		json_array_foreach (json_object_get(o, "processors"), i, item)
			TRY(load_post(t, item, depth + 1, err));
	} else if (strcmp(type, "TemplateProcessing") == 0) {
		return load_template(t, o, err);
	} else if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
		const json_t *cls = json_array_get(json_object_get(o, "cls"), 1),
		             *sep = json_array_get(json_object_get(o, "sep"), 1);
		TRY(special_id(t, cls, err));
		TRY(special_id(t, sep, err));
		ids_push(t, &t->prefix, &t->n_prefix, (int32_t)json_integer_value(cls));
		ids_push(t, &t->suffix, &t->n_suffix, (int32_t)json_integer_value(sep));
		t->has_pair = true;
		ids_push(t, &t->pair[0], &t->n_pair[0], (int32_t)json_integer_value(cls));
		for (int n = type[0] == 'R' ? 2 : 1; n-- > 0;)
			ids_push(t, &t->pair[1], &t->n_pair[1], (int32_t)json_integer_value(sep));
		ids_push(t, &t->pair[2], &t->n_pair[2], (int32_t)json_integer_value(sep));
	} else if (strcmp(type, "ByteLevel") != 0) {
		/* ByteLevel is accepted: as a post-processor it only trims offsets */
		return unknown("post_processor", type, err);
	}
	return LLMC_OK;
}

llmc_status
json_load_pipeline(llmc_tokenizer *t, json_t *root, llmc_error *err)
{
	TRY(load_norm(t, json_object_get(root, "normalizer"), 0, err));
	TRY(load_pre(t, json_object_get(root, "pre_tokenizer"), 0, err));
	TRY(load_post(t, json_object_get(root, "post_processor"), 0, err));
	TRY(load_dec(t, json_object_get(root, "decoder"), 0, err));
	const json_t *dec = json_object_get(root, "decoder");
	if (!dec || json_is_null(dec))
		dec_add(t, DEC_JOIN_SPACES);
	return LLMC_OK;
}
