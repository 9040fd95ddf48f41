/* Structural tags: outputs assembled from parts, such as forced tool calls. A part is an object
 * with one key:
 *   text      these characters; the name of a special token stands for that token
 *   schema    JSON of this schema          regex     a whole regex
 *   schema, arguments: {values: raw, python or quoted; quote; open, value, json, end; between}: the members of an object as arguments of a call, each after `open`, with `value` (for other values
            than strings `json`) after the key and `end` after the value; raw strings stand for
 themselves, quoted ones stand between `quote`
  until     any characters up to and including the first occurrence of this string
 *   triggered {triggers, tags: [{begin, part, end}], at_least_one, stop_after_first}: free text in which a trigger begins a tag
 *   seq, alt  list of parts: all of them in order, one of them
 *   many      [part, separator]: one or more, at most `max` if given
 *   grammar   source in another notation, `kind`: json, json_schema, regex, gbnf, choice or lark; `strict`, `additional`: as the options, for this part; `json`: a regex or lark written
 *             as the inside of a JSON string, with escapes */
#include <string.h>

#include "base/json.h"
#include "base/json_schema.h"
#include "base/utf8.h"
#include "grammar/language.h"

enum { MAX_NEST = 50, MAX_UNTIL = 64 };

static Expr *part(GrammarBuilder *b, const json_t *v, int depth);

/* Returns the longest special token whose name begins at s; -1: none. */
int32_t
special_at(const TokenVocab *l, const char *s, size_t n, size_t *len)
{
	int32_t best = -1;

	*len = 0;
	for (int32_t i = 0; i < l->n_tok; i++) {
		size_t own = l->at[i + 1] - l->at[i];
		if (l->special[i] && own > *len && own <= n &&
		    memcmp(l->bytes + l->at[i], s, own) == 0) {
			best = i;
			*len = own;
		}
	}
	return best;
}

static Expr *
text(GrammarBuilder *b, const char *s, size_t n)
{
	ExprList parts = { 0 };
	size_t from = 0, len;

	for (size_t i = 0; i < n;) {
		/* special token names begin with punctuation, so skip the search for others */
		int32_t id =
		    strchr("<[|\xEF", s[i]) ? special_at(b->lexicon, s + i, n - i, &len) : -1;
		if (id < 0) {
			i++;
			continue;
		}
		if (i > from)
			expr_push(b, &parts, expr_bytes(b, s + from, i - from));
		expr_push(b, &parts, expr_token(b, id));
		i += len;
		from = i;
	}
	if (n > from)
		expr_push(b, &parts, expr_bytes(b, s + from, n - from));
	return expr_list(b, EXPR_SEQ, &parts);
}

/* Matches any string that ends with the first occurrence of `end`: one rule per matched prefix
 * (Knuth-Morris-Pratt). */
Expr *
until_text(GrammarBuilder *b, const char *text_end)
{
	size_t n_bytes = strlen(text_end), n = 0, len;
	int32_t rule[MAX_UNTIL + 1];
	uint32_t end[MAX_UNTIL + 1];

	int32_t id = n_bytes && strchr("<[|", text_end[0])
	                 ? special_at(b->lexicon, text_end, n_bytes, &len)
	                 : -1;
	if (id >= 0) { /* a special token, which has no characters */
		Range all[2];
		size_t n_all = ranges_invert(NULL, 0, all);
		return expr_seq(b, 3, expr_rep(b, expr_chars(b, all, n_all), 0, -1),
		                expr_token(b, id), text(b, text_end + len, n_bytes - len));
	}
	for (size_t at = 0; at < n_bytes && n <= MAX_UNTIL; at += len)
		end[n++] = (uint32_t)utf8_next(text_end + at, n_bytes - at, &len);
	if (!n || n > MAX_UNTIL)
		build_fail(b, "parts: 'until' needs a string of 1 to %d characters", MAX_UNTIL);
	for (size_t i = 0; i < n; i++)
		rule[i] = rule_new(b);
	for (size_t i = 0; i < n; i++) {
		ExprList parts = { 0 };
		Range taken[MAX_UNTIL + 1], rest[MAX_UNTIL + 3];
		size_t n_taken = 0;
		for (size_t k = 0; k < n; k++) { /* each distinct character of `end` once */
			size_t before = 0;
			while (before < k && end[before] != end[k])
				before++;
			if (before < k)
				continue;
			size_t to = end[k] == end[i] ? i + 1 : 0;
			for (size_t m = i; !to && m > 0;
			     m--) /* longest prefix that ends with this character */
				if (end[m - 1] == end[k] &&
				    memcmp(end, end + i - (m - 1), (m - 1) * sizeof *end) == 0)
					to = m;
			taken[n_taken++] = (Range){ end[k], end[k] };
			Expr *c = expr_char(b, end[k], end[k]);
			expr_push(b, &parts,
			          to == n ? c : expr_seq(b, 2, c, expr_rule(b, rule[to])));
		}
		n_taken = ranges_join(taken, n_taken);
		size_t n_rest = ranges_invert(taken, n_taken, rest);
		expr_push(b, &parts,
		          expr_seq(b, 2, expr_chars(b, rest, n_rest), expr_rule(b, rule[0])));
		Expr *body = expr_list(b, EXPR_ALT, &parts);
		b->rule[rule[i]] = body;
	}
	return expr_rule(b, rule[0]);
}

static Expr *
list(GrammarBuilder *b, ExprKind kind, const json_t *v, int depth)
{
	ExprList parts = { 0 };
	json_t *one;
	size_t i;

	if (!json_is_array(v))
		build_fail(b, "parts: expected a list");
	json_array_foreach ((json_t *)(uintptr_t)v, i, one)
		expr_push(b, &parts, part(b, one, depth + 1));
	return expr_list(b, kind, &parts);
}

static Expr *
grammar(GrammarBuilder *b, const json_t *v, const json_t *own)
{
	static const char *const names[] = {
		[LLMC_GRAMMAR_JSON] = "json",     [LLMC_GRAMMAR_JSON_SCHEMA] = "json_schema",
		[LLMC_GRAMMAR_REGEX] = "regex",   [LLMC_GRAMMAR_GBNF] = "gbnf",
		[LLMC_GRAMMAR_CHOICE] = "choice", [LLMC_GRAMMAR_LARK] = "lark",
	};
	const char *name = json_string_value(json_object_get(v, "kind"));
	RegexFlags flags = { .json = json_is_true(json_object_get(v, "json")) };
	const llmc_grammar_options outer = b->opt;
	const char *word = json_string_value(json_object_get(v, "additional"));
	const int additional = word ? json_schema_additional_of(word) : (int)outer.additional;

	for (size_t i = 0; name && i < sizeof names / sizeof *names; i++) {
		if (!names[i] || strcmp(name, names[i]) != 0)
			continue;
		if (i == LLMC_GRAMMAR_LARK)
			return lark_read(b, json_string_value(own), json_string_length(own), flags);
		if (i == LLMC_GRAMMAR_REGEX)
			return regex_read(b, json_string_value(own), json_string_length(own),
			                  flags);
		if (flags.json)
			build_fail(b, "parts: within a JSON string a grammar is regex or lark");
		b->opt.strict = json_is_true(json_object_get(v, "strict"));
		if (additional < 0)
			build_fail(b, "parts: 'additional' is auto, closed or open");
		b->opt.additional = (llmc_additional)additional;
		Expr *x = kind_read(b, (llmc_grammar_kind)i, json_string_value(own),
		                    json_string_length(own));
		b->opt = outer;
		return x;
	}
	build_fail(b,
	           "parts: 'kind' of a grammar is json, json_schema, regex, gbnf, choice or lark");
}

Expr *
mark_text(GrammarBuilder *b, const char *s)
{
	return text(b, s, strlen(s));
}

bool
mark_is_token(GrammarBuilder *b, const char *s)
{
	size_t len;

	return *s && strchr("<[|", *s) && special_at(b->lexicon, s, strlen(s), &len) >= 0;
}

/* Matches the arguments of a call by a schema, in the style that `v` describes. */
static Expr *
arguments(GrammarBuilder *b, const json_t *schema, const json_t *v, const char *name)
{
	const char *values = json_string_value(json_object_get(v, "values"));
	ValueStyle style = {
		.raw = values && !strcmp(values, "raw"),
		.quote = json_string_value(json_object_get(v, "quote")),
		.open = json_text_of(v, "open"),
		.value = json_text_of(v, "value"),
		.json = json_text_of(v, "json"),
		.end = json_text_of(v, "end"),
		.between = json_text_of(v, "between"),
	};

	if (!values || (!style.raw && strcmp(values, "python") != 0 &&
	                (strcmp(values, "quoted") != 0 || !style.quote)))
		build_fail(b,
		           "parts: 'values' of arguments are raw, python or quoted, with 'quote'");
	if (style.raw && !*style.end)
		build_fail(b, "parts: raw values of arguments need an 'end'");
	style.kind = style.raw                   ? STYLE_JSON
	             : !strcmp(values, "python") ? STYLE_PYTHON
	                                         : STYLE_QUOTED;
	style.json = *style.json ? style.json : style.value;
	const ValueStyle *outer = b->style;
	b->style = &style;
	Expr *x = schema_arguments(b, schema, name);
	b->style = outer;
	return x;
}

/* Matches any characters. */
static Expr *
anything(GrammarBuilder *b)
{
	return expr_rep(b, expr_char(b, 0, 0x10FFFF), 0, -1);
}

/* Matches any characters without a trigger, then, if not NULL, `end`, which is the first trigger in
 * the text. */
static Expr *
without_triggers(GrammarBuilder *b, const json_t *triggers, const char *end)
{
	Expr *any = anything(b);
	ExprList words = { 0 };
	const json_t *v;
	size_t i;
	Language l;

	json_array_foreach ((json_t *)(uintptr_t)triggers, i, v)
		if (!mark_is_token(b, json_string_value(v)))
			expr_push(b, &words,
			          expr_bytes(b, json_string_value(v), json_string_length(v)));
	if (end && mark_is_token(b, end))
		return expr_seq(b, 2, without_triggers(b, triggers, NULL), mark_text(b, end));
	if (!words.n)
		return any;
	/* with `end`, no trigger may be complete before the last character */
	Expr *trigger = expr_list(b, EXPR_ALT, &words);
	Operand op[] = { { end ? expr_seq(b, 2, any, expr_text(b, end)) : any, false },
		         { end ? expr_seq(b, 4, any, trigger, expr_char(b, 0, 0x10FFFF), any)
		               : expr_seq(b, 3, any, trigger, any),
		           true } };
	if (!language_make(b, op, 2, &l))
		build_fail(b, "parts: the triggers are too large together");
	return language_expr(b, &l, 0, -1, (RegexFlags){ 0 });
}

/* {"triggers": [string], "tags": [{"begin", "part", "end"}], "at_least_one", "stop_after_first"}:
 * Matches free text in which each trigger begins one of the tags that start with it. */
static Expr *
triggered(GrammarBuilder *b, const json_t *v, int depth)
{
	const json_t *triggers = json_object_get(v, "triggers"), *tags = json_object_get(v, "tags"),
	             *trigger, *tag;
	bool one = json_is_true(json_object_get(v, "at_least_one")),
	     stop = json_is_true(json_object_get(v, "stop_after_first"));
	ExprList all = { 0 };
	size_t i, k;

	if (!json_array_size(triggers) || !json_array_size(tags))
		build_fail(b, "parts: triggered tags need 'triggers' and 'tags'");
	json_array_foreach ((json_t *)(uintptr_t)triggers, i, trigger) {
		const char *word = json_string_value(trigger);
		ExprList own = { 0 };
		if (!word || !*word)
			build_fail(b, "parts: a trigger is a string of at least one character");
		json_array_foreach ((json_t *)(uintptr_t)tags, k, tag) {
			const char *begin = json_text_of(tag, "begin");
			if (strncmp(begin, word, strlen(word)) != 0)
				continue;
			expr_push(b, &own,
			          expr_seq(b, 3, mark_text(b, begin + strlen(word)),
			                   part(b, json_object_get(tag, "part"), depth + 1),
			                   mark_text(b, json_text_of(tag, "end"))));
		}
		if (own.n)
			expr_push(b, &all,
			          expr_seq(b, 2, without_triggers(b, triggers, word),
			                   expr_list(b, EXPR_ALT, &own)));
	}
	if (!all.n)
		build_fail(b, "parts: no tag begins with a trigger");
	Expr *tagged = expr_list(b, EXPR_ALT, &all), *rest = without_triggers(b, triggers, NULL);
	return stop ? (one ? tagged : expr_alt(b, 2, tagged, rest))
	            : expr_seq(b, 2, expr_rep(b, tagged, one, -1), rest);
}

static Expr *
part(GrammarBuilder *b, const json_t *v, int depth)
{
	const json_t *x;

	if (depth > MAX_NEST)
		build_fail(b, "parts: nested too deeply");
	if (json_is_string(x = json_object_get(v, "text")))
		return text(b, json_string_value(x), json_string_length(x));
	if ((x = json_object_get(v, "schema"))) {
		const char *name = json_string_value(json_object_get(v, "name"));
		return json_object_get(v, "arguments")
		           ? arguments(b, x, json_object_get(v, "arguments"), name ? name : "")
		           : schema_of(b, x, x, name ? name : "");
	}
	if (json_is_string(x = json_object_get(v, "regex")))
		return regex_read(b, json_string_value(x), json_string_length(x),
		                  (RegexFlags){ 0 });
	if (json_is_string(x = json_object_get(v, "until")))
		return until_text(b, json_string_value(x));
	if ((x = json_object_get(v, "triggered")))
		return triggered(b, x, depth);
	if ((x = json_object_get(v, "seq")))
		return list(b, EXPR_SEQ, x, depth);
	if ((x = json_object_get(v, "alt")))
		return list(b, EXPR_ALT, x, depth);
	if (json_array_size(x = json_object_get(v, "many")) == 2) {
		json_int_t max = json_integer_value(json_object_get(v, "max"));
		Expr *one = part(b, json_array_get(x, 0), depth + 1),
		     *between = part(b, json_array_get(x, 1), depth + 1);
		return expr_seq(b, 2, one,
		                expr_rep(b, expr_seq(b, 2, between, one), 0,
		                         max > 0 && max < 100000 ? (int32_t)max - 1 : -1));
	}
	if (json_is_string(x = json_object_get(v, "grammar")))
		return grammar(b, v, x);
	build_fail(
	    b,
	    "parts: expected an object with text, schema, regex, until, seq, alt, many or grammar");
}

Expr *
structural_tags_read(GrammarBuilder *b, const char *s, size_t n)
{
	json_error_t why;
	json_t *v = json_read(b->a, s, n, JSON_ALLOW_NUL | JSON_KEEP_NUMBERS, &why);

	if (!v)
		build_fail(b, "parts: invalid JSON: %s at line %d, column %d", why.text, why.line,
		           why.column);
	return part(b, v, 0);
}
