/* Parses YAML into a Node tree, each node with its location. Users of this header see only maps,
 * lists and scalars.
 *
 * The subset: one document; no anchors, aliases, tags or merge keys; map keys are plain strings and
 * unique; at most YAML_MAX_DEPTH levels and YAML_MAX_NODES nodes; UTF-8. */
#ifndef LLMC_FORMATS_YAML_H
#define LLMC_FORMATS_YAML_H

#include "base/number.h"
#include "formats/diag.h"

enum { YAML_MAX_DEPTH = 24, YAML_MAX_NODES = 200000, YAML_MAX_BYTES = 8 << 20 };

typedef enum NodeKind { NODE_SCALAR, NODE_LIST, NODE_MAP } NodeKind;

typedef struct Node Node;
struct Node {
	NodeKind kind;
	Loc loc;
	const char *text; /* scalar: NUL-terminated, no NUL inside */
	bool quoted;      /* scalar: quoted or a block, so never a number, bool or null */
	size_t n, cap;    /* number of list items or map pairs */
	Node **item;      /* list items, or map values */
	Node **key;       /* map: keys, all scalars */
};

/* Returns NULL after an error, which is in d. An empty document gives an empty map. */
Node *yaml_parse(const SourceText *src, Diag *d, Arena *a);
/* Copies the text of one file to the arena. */
const SourceText *yaml_source(Arena *a, const char *name, const char *text, size_t size);

Node *node_get(const Node *map, const char *key); /* value; NULL: absent, or not a map */
bool node_is_null(const Node *n);                 /* plain null, ~ or empty */
bool node_int(const Node *n, int64_t *out);       /* plain decimal integer, _ not allowed */
bool node_num(const Node *n, double *out);        /* plain finite number, in any locale */
bool node_bool(const Node *n, bool *out);         /* plain true or false */
const char *node_kind_text(const Node *n);        /* "a map", "a list", "text" for errors */
/* Formats a number for descriptions: like number_text, but integers below 1e16 have no point. */
void yaml_number(char out[NUMBER_SIZE], double v);

#endif
