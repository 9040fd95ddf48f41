/* Grammars over a small vocabulary: the strings that each front end allows. Masks are compared with
 * another engine's in tests/text/test_grammar.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "base/strbuf.h"
#include "grammar/grammar.h"

/* every byte, some longer tokens, an end token, a token with the same bytes as another one, a
 * special token */
enum { EOS = 300, SPECIAL = 301, N_TOK = 302 };

static TokenVocab *
lexicon(void)
{
	static const char *const longer[] = {
		"{\"", "\":", "\", \"",   "tru",
		"e}",  "123", "    ",     "\n\n\n",
		"abc", "abc", "\"}",      "]]",
		"\\u", "00",  "\xc3\xa9", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	};
	static char byte[256];
	VocabToken tok[N_TOK] = { 0 };
	TokenVocab *l;

	for (int i = 0; i < 256; i++) {
		byte[i] = (char)i;
		tok[i] = (VocabToken){ &byte[i], 1, false };
	}
	for (size_t i = 0; i < sizeof longer / sizeof *longer; i++)
		tok[256 + i] = (VocabToken){ longer[i], (uint32_t)strlen(longer[i]), false };
	tok[EOS] = (VocabToken){ "</s>", 4, true };
	tok[SPECIAL] = (VocabToken){ "abc", 3, true };
	assert_int_equal(token_vocab_open(tok, N_TOK, &l, NULL), LLMC_OK);
	return l;
}

static Grammar *
grammar(llmc_grammar_kind kind, const char *text, llmc_grammar_options opt, llmc_error *err)
{
	TokenVocab *l = lexicon();
	Grammar *g = NULL;
	int32_t eos = EOS;

	opt.size = sizeof opt;
	grammar_open(l, kind, text, strlen(text), &opt, &eos, 1, &g, err);
	token_vocab_close(l);
	return g;
}

static bool
allowed(Matcher *m, int32_t id)
{
	uint32_t bits[(N_TOK + 31) / 32 + 2];
	bool all;

	assert_int_equal(matcher_mask(m, bits, sizeof bits / sizeof *bits, &all, NULL), LLMC_OK);
	if (!all)
		assert_int_equal(bits[(N_TOK + 31) / 32], 0); /* no bits beyond the vocabulary */
	return all || (bits[id >> 5] >> (id & 31) & 1);
}

/* Returns whether the grammar accepts the text, byte by byte. At each position, a longer token must
 * be allowed exactly if its bytes are allowed. */
static bool
accepts(Grammar *g, const char *text)
{
	Matcher *m;
	bool ok = true;

	assert_int_equal(matcher_open(g, NULL, &m, NULL), LLMC_OK);
	for (const char *c = text; *c && ok; c++) {
		ok = allowed(m, (uint8_t)*c);
		assert_int_equal(matcher_accept(m, (uint8_t)*c, NULL) == LLMC_OK, ok);
	}
	if (ok) {
		ok = matcher_may_end(m);
		assert_int_equal(allowed(m, EOS), ok);
		assert_false(allowed(m, SPECIAL));
	}
	matcher_close(m);
	return ok;
}

/* Grammar that Codex sends for its patches */
#define APPLY_PATCH                                                                                \
	"start: begin_patch hunk+ end_patch\nbegin_patch: \"*** Begin Patch\" LF\nend_patch: "     \
	"\"*** End Patch\" LF?\n\nhunk: add_hunk | delete_hunk | update_hunk\n"                    \
	"add_hunk: \"*** Add File: \" filename LF add_line+\ndelete_hunk: \"*** Delete File: \" "  \
	"filename LF\nupdate_hunk: \"*** Update File: \" filename LF change_move? change?\n\n"     \
	"filename: /(.+)/\nadd_line: \"+\" /(.*)/ LF -> line\n\nchange_move: \"*** Move to: \" "   \
	"filename LF\nchange: (change_context | change_line)+ eof_line?\n"                         \
	"change_context: (\"@@\" | \"@@ \" /(.+)/) LF\nchange_line: (\"+\" | \"-\" | \" \") "      \
	"/(.*)/ LF\neof_line: \"*** End of File\" LF\n\n%import common.LF\n"

#define TEN_E "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"

typedef struct Case {
	llmc_grammar_kind kind;
	const char *text;
	const char *yes[8], *no[8];
} Case;

static void
check(const Case *c, llmc_grammar_options opt)
{
	llmc_error err = { 0 };
	Grammar *g = grammar(c->kind, c->text, opt, &err);

	if (!g)
		fail_msg("%s: %s", c->text, err.text);
	for (int i = 0; i < 8 && c->yes[i]; i++)
		if (!accepts(g, c->yes[i]))
			fail_msg("%s refuses %s", c->text, c->yes[i]);
	for (int i = 0; i < 8 && c->no[i]; i++)
		if (accepts(g, c->no[i]))
			fail_msg("%s takes %s", c->text, c->no[i]);
	grammar_close(g);
}

static void
each_kind_of_grammar_allows_its_strings(void **state)
{
	static const Case cases[] = {
		{ LLMC_GRAMMAR_JSON,
		  "",
		  { "{}", "{ \"a\": [1, 2.5e3, {\"b\": null}] }", "{\n  \"a\": \"\\u001f\\n\"\n}" },
		  { "[]", "{\"a\":1,}", "{\"a\":01}", "{   \"a\":1}", "{\"a\":3.5.5}",
		    "{\"a\":\"\n\"}" } },
		{ LLMC_GRAMMAR_REGEX,
		  "[a-c]+(x|y){2,3}\\d?",
		  { "axx", "abcyxy7" },
		  { "ax", "axxxx", "dxx", "" } },
		{ LLMC_GRAMMAR_REGEX,
		  "^[^\\x00-\\x7f]$",
		  { "\xc3\xa9", "\xf0\x9f\x98\x80" },
		  { "a", "\xc3\xa9\xc3\xa9" } },
		{ LLMC_GRAMMAR_REGEX, "(a?){3}b|", { "", "b", "aaab" }, { "aaaab", "a" } },
		{ LLMC_GRAMMAR_CHOICE,
		  "[\"yes\", \"yes!\", \"no\"]",
		  { "yes", "yes!", "no" },
		  { "y", "yesno", "" } },
		{ LLMC_GRAMMAR_GBNF,
		  "root ::= item (\",\" item)*\n# a comment\nitem ::= \"a\" | [0-9]{2,3} |\n  "
		  "\"(\" root \")\"",
		  { "a", "a,12,(a,(123))" },
		  { "1", "a,", "(a", "1234" } },
		{ LLMC_GRAMMAR_GBNF,
		  "root ::= \"a\" root | \"b\"",
		  { "b", "aaaaaaaaaaaaaaaaaaab" },
		  { "a", "ba" } },
		{ LLMC_GRAMMAR_LARK,
		  "// two\n?start: item (\",\" item)* -> list\n  | \"-\"  # or none\n\n!item: "
		  "\"a\" | NUMBER~2..3\n  | \"(\" start \")\"\nNUMBER: /[0-9]/\n",
		  { "a", "a,12,(a,(123))", "-", "(-)" },
		  { "1", "a,", "(a", "1234", "--" } },
		{ LLMC_GRAMMAR_LARK,
		  "start: \"ab1\\t\xc3\xa9z\"i | \"abc\" | \"ab\" | \"\" \"x\"",
		  { "Ab1\t\xc3\xa9Z", "abc", "ab", "x" },
		  { "aBc", "a", "", "ab1\t\xc3\x89z" } },
		{ LLMC_GRAMMAR_PARTS,
		  "{\"grammar\":\"start: "
		  "\\\"aB\\\\t\\\\\\\"\\u00e9\\\"i\",\"kind\":\"lark\",\"json\":true}",
		  { "Ab\\t\\\"\xc3\xa9" },
		  { "ab\t\\\"\xc3\xa9", "ab\\t\"\xc3\xa9" } },
		{ LLMC_GRAMMAR_LARK, "?!start: a\n!?a: \"b\"", { "b" }, { "", "a" } },
		{ LLMC_GRAMMAR_LARK,
		  "start: expr\nexpr: expr \"+\" term | expr \"-\" term | term\nterm: term \"*\" "
		  "INT -> mul\n | INT\n%import common.INT",
		  { "1", "1+22*3-4" },
		  { "", "1+", "*1", "1**2" } },
		{ LLMC_GRAMMAR_LARK,
		  "start: [SIGN] \"x\"i \"y\"..\"z\" /[^a]b/i _END?\nSIGN: \"+\" | \"-\"\n_END: "
		  "\"\\x21\" /./s",
		  { "xybb", "+XzcB", "-xyxB!\n" },
		  { "xyab", "xyAb", "xxbb", "+-xybb", "xybb!" } },
		{ LLMC_GRAMMAR_LARK,
		  "%import common (CNAME, ESCAPED_STRING)\n%import common.NUMBER -> N\nstart: "
		  "CNAME \"=\" (ESCAPED_STRING | N) NL{1,2}\nNL: /\\n/",
		  { "a_1=\"x \\\" y\"\n", "b=1.5e3\n\n", "_=.5\n" },
		  { "1=2\n", "a=\"x\n", "a=1", "a=1\n\n\n" } },
		{ LLMC_GRAMMAR_LARK,
		  APPLY_PATCH,
		  { "*** Begin Patch\n*** Add File: a/b.c\n+int\n+\n*** End Patch",
		    "*** Begin Patch\n*** Delete File: x\n*** Update File: y\n*** Move to: z\n@@ "
		    "f()\n-a\n+b\n c\n@@\n+d\n*** End of File\n*** End Patch\n" },
		  { "*** Begin Patch\n*** End Patch",
		    "*** Begin Patch\n*** Add File: a\n*** End Patch",
		    "*** Begin Patch\n*** Add File: \n+x\n*** End Patch",
		    "*** Begin Patch\n*** Update File: a\n?x\n*** End Patch" } },
		{ LLMC_GRAMMAR_PARTS,
		  "{\"seq\":[{\"text\":\"\\\"\"},{\"grammar\":\"start: \\\"\\\\n\\\\\\\"\\\" "
		  "/[^a]+/\",\"kind\":\"lark\",\"json\":true},{\"text\":\"\\\"\"}]}",
		  { "\"\\n\\\"x\"", "\"\\n\\\"\\u0001\\\\\"" },
		  { "\"\n\\\"x\"", "\"\\n\"x\"", "\"\\n\\\"a\"" } },
		{ LLMC_GRAMMAR_PARTS,
		  "{\"grammar\":\"a\\n.\",\"kind\":\"regex\",\"json\":true}",
		  { "a\\nb", "a\\n\\t" },
		  { "a\nb", "a\\n\\n" } },
		{ LLMC_GRAMMAR_PARTS,
		  "{\"until\":\"</\\u00e9\\u00e9>\"}",
		  { "</\xc3\xa9\xc3\xa9>", "\xc3\xa9</\xc3\xa9<</\xc3\xa9\xc3\xa9>" },
		  { "</\xc3\xa9>", "</\xc3\xa9\xc3\xa9>x" } },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
		  { "\"ab\"", "\"\xc3\xa9\\n\xc3\xa9\"" },
		  { "\"a\"", "\"abcd\"" } },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"type\":\"number\",\"minimum\":-1.5,\"exclusiveMaximum\":20}",
		  { "-1.5", "-1.50", "0", "19.999", "-0.1" },
		  { "-1.51", "-2", "20", "20.0", "1e1" } },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"type\":\"integer\",\"multipleOf\":6}",
		  { "0", "12", "-6" },
		  { "7", "03", "13" } },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":true,\"c\":{\"const\":null}}"
		  ",\"required\":[\"b\"]}",
		  { "{\"b\":1}", "{\"a\": 1, \"b\": [], \"c\": null}", "{\"b\":{},\"c\":null}" },
		  { "{}", "{\"b\":1,\"a\":1}", "{\"a\":1}", "{\"b\":1,\"x\":2}", "3" } },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"properties\":{\"ab\":true},\"additionalProperties\":{\"type\":\"null\"}}",
		  { "{}", "{\"ab\":1,\"a\":null,\"abc\":null,\"b\":null}" },
		  { "{\"a\":1}", "{\"ab\":1,\"ab\":null}" } },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"type\":\"object\",\"minProperties\":1,\"properties\":{\"a\":true,\"b\":true}"
		  "}",
		  { "{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}" },
		  { "{}" } },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":{\"type\":"
		  "\"boolean\"},\"minItems\":2,\"maxItems\":3}",
		  { "[null,true]", "[null, true, false]" },
		  { "[null]", "[null,true,true,true]", "[true,true]" } },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"$ref\":\"#/$defs/"
		  "n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#/"
		  "$defs/n\"}}}}}",
		  { "{}", "{\"n\":{\"n\":{}}}" },
		  { "{\"n\":1}" } },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"allOf\":[{\"type\":[\"string\",\"integer\"]},{\"minimum\":3}],\"anyOf\":[{"
		  "\"maximum\":5},{\"type\":\"string\"}]}",
		  { "3", "5", "\"x\"" },
		  { "2", "6", "null" } },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"enum\":[1,\"a\\\"b\",{\"k\":[true]}]}",
		  { "1", "\"a\\\"b\"", "{\"k\": [true]}" },
		  { "2", "\"a\"" } },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"type\":\"string\",\"pattern\":\"^[a-z]\\\\w*$\",\"maxLength\":4}",
		  { "\"a\"", "\"ab_9\"" },
		  { "\"9\"", "\"abcde\"", "\"\"" } },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"type\":\"string\",\"format\":\"date\"}",
		  { "\"2024-02-29\"", "\"1999-12-31\"" },
		  { "\"2023-02-29\"", "\"1999-13-01\"" } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		check(&cases[i], (llmc_grammar_options){ 0 });
	check(
	    &(Case){ LLMC_GRAMMAR_JSON_SCHEMA, "{\"minimum\":3}", { "3", "\"x\"", "{}" }, { "2" } },
	    (llmc_grammar_options){ .standard = true });
	check(&(Case){ LLMC_GRAMMAR_JSON, "", { "{\"a\":1}" }, { "{ \"a\":1}", "{\"a\": 1}" } },
	      (llmc_grammar_options){ .compact = true });
}

static void
errors_name_their_position(void **state)
{
	static const struct {
		llmc_grammar_kind kind;
		const char *text, *want;
	} cases[] = {
		{ LLMC_GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"type\":\"strng\"}}}",
		  "#/properties/a/type" },
		{ LLMC_GRAMMAR_JSON_SCHEMA, "{\"items\":{\"pattern\":\"a(?=b)\"}}", "look-around" },
		{ LLMC_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"http://x/y\"}", "$ref" },
		{ LLMC_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/nowhere\"}", "does not exist" },
		{ LLMC_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#\"}",
		  "schema, #/$ref: the rule begins with itself" },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"properties\":{\"a\":{\"$ref\":\"#/$defs/b\"}},\"$defs\":{\"b\":{\"$ref\":\"#/"
		  "$defs/c\"},\"c\":{\"anyOf\":[{\"$ref\":\"#/$defs/b\"},{\"type\":\"null\"}]}}}",
		  "schema, #/properties/a/$ref: the rule begins with itself" },
		{ LLMC_GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{\"$ref\":\"#\"}]}", "schema, #/allOf" },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"items\":{\"$ref\":\"#/items\",\"type\":\"string\"}}",
		  "schema, #/items/allOf" },
		{ LLMC_GRAMMAR_JSON_SCHEMA, "{\"oneOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}",
		  "schema, #/oneOf: alternatives of one value are nested too deeply or "
		  "recursively" },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"properties\":{\"a\":{\"not\":{\"uniqueItems\":true}}}}",
		  "#/properties/a/not" },
		{ LLMC_GRAMMAR_JSON_SCHEMA, "{\"type\":", "invalid JSON" },
		{ LLMC_GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}",
		  "nothing matches the grammar: no value fits schema, #/minimum" },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[]}},\"required\":[\"a\"]}",
		  "no value fits schema, #/properties/a/enum" },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":3,"
		  "\"maxLength\":2},\"minItems\":1}",
		  "#/items/minLength" },
		{ LLMC_GRAMMAR_JSON_SCHEMA, "false", "no value fits schema, #" },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"properties\":{\"a\":false},\"required\":[\"a\"],\"type\":\"object\"}",
		  "#/properties/a" },
		{ LLMC_GRAMMAR_REGEX, "a(b", "no closing" },
		{ LLMC_GRAMMAR_REGEX, "\\1", "back-references" },
		{ LLMC_GRAMMAR_REGEX,
		  "(" TEN_E TEN_E TEN_E TEN_E TEN_E TEN_E TEN_E TEN_E TEN_E TEN_E,
		  "\xc3\xa9... at byte 201" }, /* the position is not within a character */
		{ LLMC_GRAMMAR_GBNF, "x ::= \"b\"\nroot ::= root \"a\"",
		  "line 2: 'root': the rule begins with itself, and left recursion" },
		{ LLMC_GRAMMAR_LARK, "start: a\na: b \"x\"\nb: a | \"y\"",
		  "lark, line 2: 'a': the rule begins with itself" },
		{ LLMC_GRAMMAR_LARK, "start: X\n%ignore \" \"\nX: \"x\"",
		  "lark, line 2, at '%ignore \" \"': %ignore is not supported" },
		{ LLMC_GRAMMAR_LARK, "start: pair{\"a\", \"b\"}",
		  "line 1, at 'pair{\"a\", \"b\"}': templates" },
		{ LLMC_GRAMMAR_LARK, "start: x\nx{a}: a", "line 2, at 'x{a}: a': templates" },
		{ LLMC_GRAMMAR_LARK, "start: X\nX.2: \"x\"",
		  "line 2, at 'X.2: \"x\"': priorities" },
		{ LLMC_GRAMMAR_LARK, "start: <|end|>", "tokens by name" },
		{ LLMC_GRAMMAR_LARK, "start: %json {}", "other kinds" },
		{ LLMC_GRAMMAR_LARK, "start[max_tokens=3]: \"a\"", "attributes" },
		{ LLMC_GRAMMAR_LARK, "start: /a.*?b/",
		  "lark, line 1: regular expression a.*?b at byte 3: lazy" },
		{ LLMC_GRAMMAR_LARK, "\n\nstart: /a(?=b)/",
		  "lark, line 3: regular expression a(?=b)" },
		{ LLMC_GRAMMAR_LARK, "start: /a/x", "flag 'x'" },
		{ LLMC_GRAMMAR_LARK, "start: a\nX: a\na: \"b\"",
		  "line 2, at 'a': a terminal may contain" },
		{ LLMC_GRAMMAR_LARK, "start: a", "line 1, at 'a': this name is not defined" },
		{ LLMC_GRAMMAR_LARK, "a: \"b\"", "no rule 'start'" },
		{ LLMC_GRAMMAR_LARK, "start: \"a\"\nstart: \"b\"",
		  "line 2, at 'start: \"b\"': this name has been defined" },
		{ LLMC_GRAMMAR_LARK, "start: \"a", "line 1, at '\"a': a string is not closed" },
		{ LLMC_GRAMMAR_LARK, "start: (\"a\"", "a group has no closing ')'" },
		{ LLMC_GRAMMAR_LARK, "start: \"a\" )", "line 1, at ')': not understood" },
		{ LLMC_GRAMMAR_LARK, "start: x\nx: (\"a\"?)~100",
		  "lark, line 2: 'x': an item that may be empty cannot be repeated" },
		{ LLMC_GRAMMAR_GBNF, "root ::= \"x\" y\ny ::= (\"a\"?){100}",
		  "grammar, line 2: 'y': an item that may be empty cannot be repeated" },
		{ LLMC_GRAMMAR_LARK, "start: \"a\"~3..2", "expected ~n or ~n..m" },
		{ LLMC_GRAMMAR_LARK, "%import python.NAME\nstart: NAME",
		  "only imports from common" },
		{ LLMC_GRAMMAR_LARK, "%import common.NAME\nstart: NAME", "no 'NAME' to import" },
		{ LLMC_GRAMMAR_LARK, "start \"a\"", "expected a rule" },
		{ LLMC_GRAMMAR_GBNF, "root ::= \"a\"\nx ::= y", "line 2: there is no rule 'y'" },
		{ LLMC_GRAMMAR_GBNF, "a ::= \"x\"", "root" },
		{ LLMC_GRAMMAR_CHOICE, "[]", "choice" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		llmc_error err = { 0 };
		Grammar *g = grammar(cases[i].kind, cases[i].text,
		                     (llmc_grammar_options){ .strict = true }, &err);
		assert_null(g);
		assert_int_equal(err.code, LLMC_E_INPUT);
		if (!strstr(err.text, cases[i].want))
			fail_msg("%s: %s", cases[i].text, err.text);
	}
}

/* The cost per name or expression does not grow with the text before it. */
static void
matching_takes_linear_time(void **state)
{
	static const struct {
		llmc_grammar_kind kind;
		const char *head, *rule;
		int n;
		const char *want;
	} cases[] = {
		{ LLMC_GRAMMAR_LARK, "start: \"x\"", "\na%d: /b/", 30000, NULL },
		{ LLMC_GRAMMAR_LARK, "start: \"x\"", "\na%d: /b/", 1 << 15,
		  "line 32769, at 'a32767: /b/': there are more than 32768 names" },
		{ LLMC_GRAMMAR_LARK, "start: /x/i", "i", 1000000, NULL },
		{ LLMC_GRAMMAR_GBNF, "root ::= \"x\"", "\na%d ::= [b]", 30000, NULL },
		{ LLMC_GRAMMAR_GBNF, "root ::= \"x\"", "\na%d ::= [b]", 1 << 15,
		  "line 32769, at 'a32767 ::= [b]': there are more than 32768 rules" },
		{ LLMC_GRAMMAR_GBNF, "root ::= \"x\"", " | \"b\" [c]", 60000, NULL },
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		Strbuf text = { 0 };
		llmc_error err = { 0 };
		strbuf_puts(&text, cases[i].head);
		for (int k = 0; k < cases[i].n; k++)
			strbuf_printf(&text, cases[i].rule, k);
		Grammar *g =
		    grammar(cases[i].kind, strbuf_str(&text), (llmc_grammar_options){ 0 }, &err);
		if (g ? cases[i].want || !accepts(g, "x")
		      : !cases[i].want || !strstr(err.text, cases[i].want))
			fail_msg("%s ...%s: %s", cases[i].head, cases[i].rule, err.text);
		grammar_close(g);
		strbuf_release(&text);
	}
}

/* Schemas from clients may be large, deep or ambiguous: their time and memory are bounded. */
static void
hostile_grammars_are_limited(void **state)
{
	static const char *const regex[] = { "((a{1,1000}){1,1000}){1,1000}", "(a|a)*(a|a)*(a|b)*c",
		                             "(.*a){50}", "x{0,1000000}y" };
	Strbuf deep = { 0 };
	llmc_error err = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof regex / sizeof *regex; i++) {
		Grammar *g =
		    grammar(LLMC_GRAMMAR_REGEX, regex[i], (llmc_grammar_options){ 0 }, &err);
		if (g)
			accepts(g, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
		grammar_close(g);
	}
	for (int n = 300; n <= 3000; n *= 10) {
		strbuf_clear(&deep);
		for (int i = 0; i < n; i++)
			strbuf_puts(&deep, "{\"items\":");
		strbuf_puts(&deep, "true");
		for (int i = 0; i < n; i++)
			strbuf_putc(&deep, '}');
		assert_null(grammar(LLMC_GRAMMAR_JSON_SCHEMA, strbuf_str(&deep),
		                    (llmc_grammar_options){ 0 }, &err));
		assert_true(strstr(err.text, n > 300 ? "depth"
		                                     : "/items/.../items/items/items/items/items/"
		                                       "items/items/items: nested") &&
		            strlen(err.text) < 300);
	}
	strbuf_release(&deep);
	/* nesting is limited before the stack overflows: the token is masked, so the output never
	 * reaches a dead end */
	Grammar *g = grammar(LLMC_GRAMMAR_JSON_SCHEMA, "true", (llmc_grammar_options){ 0 }, &err);
	Matcher *m;
	matcher_open(g, NULL, &m, NULL);
	int depth = 0;
	while (depth < 5000 && allowed(m, '[')) {
		assert_int_equal(matcher_accept(m, '[', NULL), LLMC_OK);
		depth++;
	}
	assert_in_range(depth, 64, 1000);
	for (; depth; depth--) {
		assert_true(allowed(m, ']'));
		matcher_accept(m, ']', NULL);
	}
	assert_true(matcher_ended(m));
	matcher_close(m);
	grammar_close(g);
}

static void
long_tokens_are_allowed_like_their_bytes(void **state)
{
	llmc_error err = { 0 };
	Grammar *g = grammar(LLMC_GRAMMAR_JSON_SCHEMA,
	                     "{\"properties\":{\"abc\":{\"type\":\"string\",\"maxLength\":41}}}",
	                     (llmc_grammar_options){ 0 }, &err);
	Matcher *m;

	(void)state;
	matcher_open(g, NULL, &m, NULL);
	assert_true(allowed(m, 256)); /* {" */
	assert_int_equal(matcher_accept(m, 256, NULL), LLMC_OK);
	assert_true(allowed(m, 264)); /* abc, and the other token with these bytes */
	assert_true(allowed(m, 265));
	assert_false(allowed(m, SPECIAL));
	assert_false(allowed(m, 259)); /* tru */
	matcher_accept(m, 265, NULL);
	assert_true(allowed(m, 257)); /* ": */
	matcher_accept(m, 257, NULL);
	matcher_accept(m, '"', NULL);
	assert_true(allowed(m, 271)); /* forty characters of the 41 */
	matcher_accept(m, 271, NULL);
	assert_false(allowed(m, 271));
	assert_false(allowed(m, 264));
	assert_true(allowed(m, 270));
	assert_true(allowed(m, 266)); /* "} */
	assert_int_not_equal(matcher_accept(m, 264, NULL), LLMC_OK);
	matcher_close(m);
	grammar_close(g);
}

/* The grammar starts after the trigger string, even within a token. */
static void
a_grammar_can_start_after_a_trigger(void **state)
{
	static const char *const after[] = { "aab", "x", NULL };
	llmc_error err = { 0 };
	Grammar *g = grammar(LLMC_GRAMMAR_CHOICE, "[\"c\"]", (llmc_grammar_options){ 0 }, &err);
	Matcher *m;

	(void)state;
	matcher_open(g, after, &m, NULL);
	for (const char *c = "xaaaabqq"; *c; c++) {
		assert_true(allowed(m, 'q'));
		assert_true(allowed(m, EOS));
		matcher_accept(m, (uint8_t)*c, NULL);
	}
	matcher_accept(m, 'x', NULL);
	assert_false(allowed(m, 'q'));
	assert_false(allowed(m, EOS));
	assert_true(allowed(m, 'c'));
	matcher_accept(m, 'c', NULL);
	assert_true(matcher_ended(m));
	matcher_reset(m);
	assert_true(allowed(m, 'q'));
	matcher_close(m);
	grammar_close(g);
	/* "aab" then "c"; the token "bc" contains the end of the trigger */
	g = grammar(LLMC_GRAMMAR_CHOICE, "[\"c!\"]", (llmc_grammar_options){ 0 }, &err);
	matcher_open(g, (const char *const[]){ "b", NULL }, &m, NULL);
	matcher_accept(m, 264, NULL); /* abc */
	assert_true(allowed(m, '!'));
	assert_false(allowed(m, 'c'));
	matcher_close(m);
	grammar_close(g);
}

static void
compiling_ends_at_the_time_limit(void **state)
{
	static const struct {
		llmc_grammar_kind kind;
		const char *text;
	} big[] = {
		{ LLMC_GRAMMAR_REGEX, "(abc|[a-z]{3}){4000}" },
		{ LLMC_GRAMMAR_JSON_SCHEMA,
		  "{\"allOf\": [{\"pattern\": \"a.{60}$\"}, {\"pattern\": \"b.{50}$\"}, "
		  "{\"pattern\": \"^.*c.{40}$\"}]}" },
	};
	llmc_error err = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof big / sizeof *big; i++) {
		deadline_set(clock_now());
		assert_null(grammar(big[i].kind, big[i].text, (llmc_grammar_options){ 0 }, &err));
		deadline_set(0);
		assert_int_equal(err.code, LLMC_E_CANCELLED);
		assert_non_null(strstr(err.text, "time limit"));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_kind_of_grammar_allows_its_strings),
		cmocka_unit_test(errors_name_their_position),
		cmocka_unit_test(matching_takes_linear_time),
		cmocka_unit_test(hostile_grammars_are_limited),
		cmocka_unit_test(long_tokens_are_allowed_like_their_bytes),
		cmocka_unit_test(a_grammar_can_start_after_a_trigger),
		cmocka_unit_test(compiling_ends_at_the_time_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
