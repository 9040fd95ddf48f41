/* Builds a Node tree from libyaml's events. The input is untrusted: depth, nodes and bytes are
 * bounded. Aliases (which can expand exponentially) and anything that YAML readers interpret
 * differently are rejected. */
#include "formats/yaml.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/file.h"

typedef struct YamlReader {
	yaml_parser_t parser;
	yaml_event_t event;
	bool have_event;
	const SourceText *src;
	Diag *d;
	Arena *a;
	size_t n_nodes;
} YamlReader;

const SourceText *
yaml_source(Arena *a, const char *name, const char *text, size_t size)
{
	SourceText *src = NEW(a, SourceText, 1);

	src->name = arena_strdup(a, name);
	src->text = arena_strndup(a, text, size);
	src->size = size;
	return src;
}

static Loc
loc_of(const YamlReader *r, yaml_mark_t m)
{
	return (Loc){ .src = r->src, .line = (int)m.line + 1, .col = (int)m.column + 1 };
}

static Loc
current_loc(const YamlReader *r)
{
	return loc_of(r, r->event.start_mark);
}

static bool
next(YamlReader *r)
{
	if (r->have_event)
		yaml_event_delete(&r->event);
	r->have_event = false;
	if (yaml_parser_parse(&r->parser, &r->event)) {
		r->have_event = true;
		return true;
	}
	const char *what = r->parser.problem ? r->parser.problem : "not YAML";
	if (r->parser.error == YAML_READER_ERROR) {
		/* libyaml reports only a byte offset */
		Loc loc = { .src = r->src, .line = 1, .col = 1 };
		size_t at = r->parser.problem_offset < r->src->size ? r->parser.problem_offset
		                                                    : r->src->size;
		for (size_t i = 0; i < at; i++) {
			unsigned char c = (unsigned char)r->src->text[i];
			if (c == '\n') {
				loc.line++;
				loc.col = 1;
			} else if ((c & 0xc0) != 0x80) {
				loc.col++;
			}
		}
		err_at(r->d, loc, "not UTF-8 text: %s", what);
	} else if (r->parser.error == YAML_MEMORY_ERROR) {
		arena_out(r->a);
	} else {
		err_at(r->d, loc_of(r, r->parser.problem_mark), "not YAML: %s%s%s", what,
		       r->parser.context ? ", " : "", r->parser.context ? r->parser.context : "");
	}
	return false;
}

static Node *
node_new(YamlReader *r, NodeKind kind)
{
	if (++r->n_nodes > YAML_MAX_NODES) {
		err_at(r->d, current_loc(r), "more than %d values in one file", YAML_MAX_NODES);
		return NULL;
	}
	Node *n = NEW(r->a, Node, 1);
	n->kind = kind;
	n->loc = current_loc(r);
	return n;
}

static void
node_add(YamlReader *r, Node *to, Node *key, Node *value)
{
	size_t cap = to->cap;

	to->item = arena_grow(r->a, to->item, &cap, to->n + 1, sizeof *to->item);
	if (key) {
		cap = to->cap;
		to->key = arena_grow(r->a, to->key, &cap, to->n + 1, sizeof *to->key);
		to->key[to->n] = key;
	}
	to->cap = cap;
	to->item[to->n++] = value;
}

static bool
plain(YamlReader *r, const yaml_char_t *anchor, const yaml_char_t *tag)
{
	if (anchor)
		err_at(
		    r->d, current_loc(r),
		    "anchors (&%s) are not used in descriptions: write the value where it belongs",
		    (const char *)anchor);
	else if (tag)
		err_at(r->d, current_loc(r),
		       "tags (%s) are not used in descriptions: write the plain value",
		       (const char *)tag);
	return !anchor && !tag;
}

static Node *
scalar(YamlReader *r)
{
	const yaml_event_t *e = &r->event;

	if (!plain(r, e->data.scalar.anchor, e->data.scalar.tag))
		return NULL;
	if (memchr(e->data.scalar.value, 0, e->data.scalar.length)) {
		err_at(r->d, current_loc(r), "text with a NUL character");
		return NULL;
	}
	Node *n = node_new(r, NODE_SCALAR);
	if (!n)
		return NULL;
	n->text = arena_strndup(r->a, (const char *)e->data.scalar.value, e->data.scalar.length);
	n->quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
	return n;
}

static Node *value(YamlReader *r, int depth);

static Node *
list(YamlReader *r, int depth)
{
	if (!plain(r, r->event.data.sequence_start.anchor, r->event.data.sequence_start.tag))
		return NULL;
	Node *n = node_new(r, NODE_LIST);
	if (!n)
		return NULL;
	for (;;) {
		if (!next(r))
			return NULL;
		if (r->event.type == YAML_SEQUENCE_END_EVENT)
			return n;
		Node *v = value(r, depth + 1);
		if (!v)
			return NULL;
		node_add(r, n, NULL, v);
	}
}

static int
key_order(const void *a, const void *b)
{
	const Node *x = *(Node *const *)a, *y = *(Node *const *)b;
	int c = strcmp(x->text, y->text);

	if (c)
		return c;
	return x->loc.line != y->loc.line ? x->loc.line - y->loc.line : x->loc.col - y->loc.col;
}

static void
check_unique(YamlReader *r, const Node *map)
{
	Node **sorted = NEW(r->a, Node *, map->n + 1);

	if (map->n < 2)
		return;
	memcpy(sorted, map->key, map->n * sizeof *sorted);
	qsort(sorted, map->n, sizeof *sorted, key_order);
	for (size_t i = 1; i < map->n; i++)
		if (strcmp(sorted[i - 1]->text, sorted[i]->text) == 0) {
			err_at(r->d, sorted[i]->loc, "key %s is given twice in one map",
			       sorted[i]->text);
			note_at(r->d, sorted[i - 1]->loc, "it is given here first");
		}
}

static Node *
map(YamlReader *r, int depth)
{
	if (!plain(r, r->event.data.mapping_start.anchor, r->event.data.mapping_start.tag))
		return NULL;
	Node *n = node_new(r, NODE_MAP);
	if (!n)
		return NULL;
	for (;;) {
		if (!next(r))
			return NULL;
		if (r->event.type == YAML_MAPPING_END_EVENT)
			break;
		if (r->event.type != YAML_SCALAR_EVENT) {
			err_at(r->d, current_loc(r),
			       "a key must be a word, not a list, map or alias");
			return NULL;
		}
		Node *k = scalar(r);
		if (!k)
			return NULL;
		if (strcmp(k->text, "<<") == 0 && !k->quoted) {
			err_at(r->d, k->loc,
			       "merge keys (<<) are not used in descriptions: write the values "
			       "where they belong");
			return NULL;
		}
		if (!next(r))
			return NULL;
		Node *v = value(r, depth + 1);
		if (!v)
			return NULL;
		node_add(r, n, k, v);
	}
	check_unique(r, n);
	return n;
}

static Node *
value(YamlReader *r, int depth)
{
	if (depth > YAML_MAX_DEPTH) {
		err_at(r->d, current_loc(r), "nested more than %d deep", YAML_MAX_DEPTH);
		return NULL;
	}
	switch ((int)r->event.type) {
	case YAML_SCALAR_EVENT:
		return scalar(r);
	case YAML_SEQUENCE_START_EVENT:
		return list(r, depth);
	case YAML_MAPPING_START_EVENT:
		return map(r, depth);
	case YAML_ALIAS_EVENT:
		err_at(
		    r->d, current_loc(r),
		    "aliases (*%s) are not used in descriptions: write the value where it belongs",
		    (const char *)r->event.data.alias.anchor);
		return NULL;
	}
	err_at(r->d, current_loc(r), "a value is missing here");
	return NULL;
}

static Node *
document(YamlReader *r)
{
	Node *root = NULL;

	if (!next(r) || !next(r)) /* stream start, then document or end */
		return NULL;
	if (r->event.type == YAML_STREAM_END_EVENT)
		return node_new(r, NODE_MAP);
	if (!next(r))
		return NULL;
	root = value(r, 0);
	if (!root || !next(r) || !next(r)) /* document end, then stream end */
		return NULL;
	if (r->event.type != YAML_STREAM_END_EVENT) {
		err_at(r->d, current_loc(r),
		       "a second document begins here: one file describes one model");
		return NULL;
	}
	if (node_is_null(root)) {
		root->kind = NODE_MAP;
		root->text = NULL;
	}
	return root;
}

static void
reader_release(void *p)
{
	YamlReader *r = p;

	if (r->have_event)
		yaml_event_delete(&r->event);
	yaml_parser_delete(&r->parser);
}

Node *
yaml_parse(const SourceText *src, Diag *d, Arena *a)
{
	YamlReader *r = NEW(a, YamlReader, 1);
	int before = d->n_error;

	*r = (YamlReader){ .src = src, .d = d, .a = a };
	if (src->size > YAML_MAX_BYTES) {
		err_at(d, (Loc){ .src = src }, "larger than %d MiB: not a description",
		       YAML_MAX_BYTES >> 20);
		return NULL;
	}
	if (!yaml_parser_initialize(&r->parser))
		arena_out(a);
	arena_defer(a, reader_release, r);
	yaml_parser_set_input_string(&r->parser, (const unsigned char *)src->text, src->size);
	yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
	Node *root = document(r);
	arena_done(a, r);
	return d->n_error == before ? root : NULL;
}

Node *
node_get(const Node *m, const char *key)
{
	if (m && m->kind == NODE_MAP)
		for (size_t i = 0; i < m->n; i++)
			if (strcmp(m->key[i]->text, key) == 0)
				return m->item[i];
	return NULL;
}

bool
node_is_null(const Node *n)
{
	return n->kind == NODE_SCALAR && !n->quoted &&
	       (!*n->text || strcmp(n->text, "null") == 0 || strcmp(n->text, "~") == 0);
}

bool
node_bool(const Node *n, bool *out)
{
	if (n->kind != NODE_SCALAR || n->quoted)
		return false;
	*out = strcmp(n->text, "true") == 0;
	return *out || strcmp(n->text, "false") == 0;
}

bool
node_int(const Node *n, int64_t *out)
{
	if (n->kind != NODE_SCALAR || n->quoted)
		return false;
	const char *p = n->text + (*n->text == '-');
	int64_t v = 0;
	if (!*p)
		return false;
	for (; *p; p++)
		if (*p < '0' || *p > '9' || __builtin_mul_overflow(v, (int64_t)10, &v) ||
		    __builtin_add_overflow(v, (int64_t)(*p - '0'), &v))
			return false;
	*out = *n->text == '-' ? -v : v;
	return true;
}

bool
node_num(const Node *n, double *out)
{
	return n->kind == NODE_SCALAR && !n->quoted && number_parse(n->text, out);
}

void
yaml_number(char out[NUMBER_SIZE], double v)
{
	number_plain(out, v, NUMBER_EXACT);
	/* YAML 1.1 readers need a point before an exponent */
	char *e = strchr(out, 'e');
	if (e && !strchr(out, '.')) {
		memmove(e + 2, e, strlen(e) + 1);
		memcpy(e, ".0", 2);
	}
}

const char *
node_kind_text(const Node *n)
{
	switch (n->kind) {
	case NODE_MAP:
		return "a map";
	case NODE_LIST:
		return "a list";
	case NODE_SCALAR:
		break;
	}
	return node_is_null(n) ? "nothing" : "text";
}
