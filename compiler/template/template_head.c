/* Splits the text of a template into head lines by kind, body lines, and the conditions that apply
 * to them. Included files are inserted in place. Nothing is evaluated here. */
#include "compiler/template/template_internal.h"

#include <ctype.h>
#include <string.h>

void
template_error_at(const Templates *ts, const TemplateLine *l, int col, const char *what)
{
	err_at(ts->diag, (Loc){ .src = &l->piece->source, .line = l->line, .col = col }, "%s",
	       what);
	for (const TemplateFile *p = l->piece; p->from; p = p->from)
		note_at(ts->diag, (Loc){ .src = &p->from->source, .line = p->line, .col = 1 },
		        "included here");
}

size_t
template_word(const char **p, const char *end, char *out, size_t cap)
{
	size_t n = 0;

	while (*p < end && (**p == ' ' || **p == '\t'))
		(*p)++;
	while (*p < end && (isalnum((unsigned char)**p) || **p == '_') && n + 1 < cap)
		out[n++] = *(*p)++;
	out[n] = 0;
	return n;
}

typedef struct HeadParser {
	const Templates *ts;
	Template *t;
	int when; /* condition that applies to the lines that follow */
} HeadParser;

static const char *const directive_name[DIRECTIVES] = {
	[D_REQUIRE] = "require", [D_LET] = "let",
	[D_ARG] = "arg",         [D_SCRATCH] = "scratch",
	[D_PRODUCT] = "product", [D_LAUNCH] = "launch",
	[D_MAP] = "map",         [D_ACTIVATIONS] = "activations",
};

/* Parse "//@word rest"; false for any other line. */
static bool
split_directive(const TemplateLine *l, char word[16], TemplateLine *rest)
{
	const char *p = l->text;
	size_t n = l->size, k = 3, w = 0;

	if (n < 3 || memcmp(p, "//@", 3) != 0)
		return false;
	while (k < n && isalpha((unsigned char)p[k]) && w < 15)
		word[w++] = p[k++];
	word[w] = 0;
	while (k < n && (p[k] == ' ' || p[k] == '\t'))
		k++;
	while (n > k && strchr(" \t\r", p[n - 1]))
		n--;
	*rest = *l;
	rest->text = p + k;
	rest->size = n - k;
	return true;
}

static bool
line_is(const TemplateLine *l, const char *text)
{
	return l->size == strlen(text) && memcmp(l->text, text, l->size) == 0;
}

static void
add_line(HeadParser *p, TemplateLines *to, const TemplateLine *l)
{
	to->line = arena_grow(p->ts->arena, to->line, &to->cap, to->n + 1, sizeof *to->line);
	to->line[to->n] = *l;
	to->line[to->n++].when = p->when;
}

static bool
wrong(HeadParser *p, const TemplateLine *l, const char *what)
{
	template_error_at(p->ts, l, 1, what);
	return false;
}

static bool
parse_phase(Template *t, const TemplateLine *l)
{
	t->both = line_is(l, "both");
	t->phase[PHASE_DECODE] = t->both || line_is(l, "decode");
	t->phase[PHASE_MIXED] = t->both || line_is(l, "mixed");
	return t->phase[PHASE_DECODE] || t->phase[PHASE_MIXED];
}

/* Parse NAME = EXPR. A file may define a name at most once per condition. A definition in an
 * included file is a default, which the including file may override. */
static bool
check_let(HeadParser *p, const TemplateLine *l)
{
	const TemplateLines *let = &p->t->head[D_LET];
	const char *at = l->text, *end = at + l->size;
	char name[48], other[48];

	template_word(&at, end, name, sizeof name);
	while (at < end && *at == ' ')
		at++;
	if (!isupper((unsigned char)name[0]) || at == end || *at != '=')
		return wrong(p, l, "expected NAME = EXPR, the name in upper case");
	for (size_t i = 0; i < let->n; i++) {
		const char *q = let->line[i].text;
		template_word(&q, q + let->line[i].size, other, sizeof other);
		if (let->line[i].piece == l->piece && let->line[i].when == p->when &&
		    strcmp(other, name) == 0)
			return wrong(p, l, "this name has a value already");
	}
	return true;
}

static bool
open_condition(HeadParser *p, const TemplateLine *l, bool negate, int outer)
{
	Template *t = p->t;

	if (t->n_condition == MAX_CONDITIONS)
		return wrong(p, l, "more than 96 conditions");
	t->condition[t->n_condition] = (Condition){ .expr = *l, .negate = negate };
	t->condition[t->n_condition].expr.when = outer;
	p->when = t->n_condition++;
	return true;
}

/* Parse @if EXPR, @else or @end. bottom: condition of the line that includes the file; a file must
 * close all conditions that it opens */
static bool
parse_condition(HeadParser *p, const char *word, const TemplateLine *l, int bottom)
{
	if (strcmp(word, "if") == 0)
		return l->size ? open_condition(p, l, false, p->when)
		               : wrong(p, l, "expected an expression");
	if (p->when == bottom)
		return wrong(p, l, "this line has no matching @if");
	const Condition c = p->t->condition[p->when];
	if (strcmp(word, "else") == 0)
		return c.negate ? wrong(p, l, "a second @else")
		                : open_condition(p, &c.expr, true, c.expr.when);
	p->when = c.expr.when;
	return true;
}

static bool parse_piece(HeadParser *p, const TemplateFile *piece, int depth);

static bool
parse_include(HeadParser *p, const TemplateLine *l, int depth)
{
	TemplateFile *piece = NEW(p->ts->arena, TemplateFile, 1);
	size_t size;
	const char *path = arena_printf(p->ts->arena, "templates/%.*s", (int)l->size, l->text);
	const char *text = p->ts->included(path, &size);

	if (!text)
		return wrong(p, l, arena_printf(p->ts->arena, "there is no %s to include", path));
	if (depth == MAX_NESTED)
		return wrong(p, l, "includes are nested too deep");
	*piece =
	    (TemplateFile){ .source = { path, text, size }, .from = l->piece, .line = l->line };
	return parse_piece(p, piece, depth + 1);
}

static bool
parse_directive(HeadParser *p, const char *word, const TemplateLine *l, int bottom, int depth)
{
	Template *t = p->t;

	for (int d = 0; d < DIRECTIVES; d++) {
		if (strcmp(word, directive_name[d]) != 0)
			continue;
		if (d == D_LET && !check_let(p, l))
			return false;
		add_line(p, &t->head[d], l);
		return true;
	}
	if (!*word)
		return true; /* "//@ text" is a comment in the head */
	if (strcmp(word, "include") == 0)
		return parse_include(p, l, depth);
	if (strcmp(word, "if") == 0 || strcmp(word, "else") == 0 || strcmp(word, "end") == 0)
		return parse_condition(p, word, l, bottom);
	if (strcmp(word, "op") == 0)
		return line_is(l, op_info[t->op].name) ||
		       wrong(p, l,
		             arena_printf(p->ts->arena, "this file is for %s: @op must name it",
		                          op_info[t->op].name));
	if (strcmp(word, "prefetch") == 0) {
		t->prefetch = true;
		t->prefetch_experts = line_is(l, "experts");
		return !l->size || t->prefetch_experts ||
		       wrong(p, l, "@prefetch takes nothing, or experts");
	}
	if (strcmp(word, "body") == 0) {
		t->has_body = true;
		return !l->size || wrong(p, l, "@body takes nothing");
	}
	if (strcmp(word, "phase") == 0)
		return parse_phase(t, l) || wrong(p, l, "@phase must be decode, mixed or both");
	return wrong(p, l, arena_printf(p->ts->arena, "unknown directive @%s", word));
}

static bool
parse_piece(HeadParser *p, const TemplateFile *piece, int depth)
{
	const int bottom = p->when;
	TemplateLine l = { .piece = piece, .line = 1, .when = -1 }, rest;
	char word[16];

	for (const char *at = piece->source.text; *at; l.line++) {
		l.text = at;
		l.size = strcspn(at, "\n");
		if (!split_directive(&l, word, &rest))
			add_line(p, &p->t->body, &l);
		else if (!parse_directive(p, word, &rest, bottom, depth))
			return false;
		at += l.size + (at[l.size] == '\n');
	}
	return p->when == bottom ||
	       wrong(p, &p->t->condition[p->when].expr, "this condition has no @end");
}

bool
template_parse(const Templates *ts, Template *t, const char *text)
{
	HeadParser p = { .ts = ts, .t = t, .when = -1 };

	t->piece = NEW(ts->arena, TemplateFile, 1);
	t->piece->source = (SourceText){ t->path, text, strlen(text) };
	if (!parse_piece(&p, t->piece, 0))
		return false;
	for (int d = 0; d < DIRECTIVES; d++)
		for (size_t i = 0; i < t->head[d].n; i++) {
			const TemplateLine *l = &t->head[d].line[i];
			t->any_rows |= memmem(l->text, l->size, "n_row", 5) != NULL;
		}
	return true;
}
