/* configs/pretokenizers.yaml: maps names of tokenizer.ggml.pre in GGUF files to split regexes. */
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/embed.h"

#define FILE_NAME "configs/pretokenizers.yaml"

static const char *
scalar(const yaml_node_t *n, size_t *len)
{
	if (!n || n->type != YAML_SCALAR_NODE)
		return NULL;
	*len = n->data.scalar.length;
	return (const char *)n->data.scalar.value;
}

static bool
is(const yaml_node_t *n, const char *s, size_t n_bytes)
{
	size_t len;
	const char *p = scalar(n, &len);
	return p && len == n_bytes && memcmp(p, s, len) == 0;
}

static yaml_node_t *
value(yaml_document_t *d, const yaml_node_t *map, const char *key)
{
	if (!map || map->type != YAML_MAPPING_NODE)
		return NULL;
	for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
	     p++)
		if (is(yaml_document_get_node(d, p->key), key, strlen(key)))
			return yaml_document_get_node(d, p->value);
	return NULL;
}

static bool
lists(yaml_document_t *d, const yaml_node_t *seq, ByteSpan name)
{
	if (!seq || seq->type != YAML_SEQUENCE_NODE)
		return false;
	for (yaml_node_item_t *i = seq->data.sequence.items.start; i < seq->data.sequence.items.top;
	     i++)
		if (is(yaml_document_get_node(d, *i), name.s, name.n))
			return true;
	return false;
}

static bool
open_doc(yaml_document_t *d)
{
	yaml_parser_t parser;
	size_t n;
	const char *text = embed_find(FILE_NAME, &n);

	if (!text || !yaml_parser_initialize(&parser))
		return false;
	yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
	int ok = yaml_parser_load(&parser, d);
	yaml_parser_delete(&parser);
	return ok;
}

/* Copies the regexes of an entry with their lengths, so that the document can be closed before code
 * that may jump out of an arena. */
static llmc_status
copy_entry(yaml_document_t *d, ByteSpan name, Strbuf *exprs, bool *add_bos, bool *ignore_merges,
           bool *found)
{
	yaml_node_t *list = value(d, yaml_document_get_root_node(d), "pretokenizers");

	*found = false;
	if (!list || list->type != YAML_SEQUENCE_NODE)
		return LLMC_OK;
	for (yaml_node_item_t *i = list->data.sequence.items.start;
	     i < list->data.sequence.items.top; i++) {
		yaml_node_t *entry = yaml_document_get_node(d, *i),
		            *split = value(d, entry, "split");
		if (!lists(d, value(d, entry, "names"), name))
			continue;
		*found = true;
		*add_bos = is(value(d, entry, "add_bos"), "true", 4);
		*ignore_merges = is(value(d, entry, "ignore_merges"), "true", 4);
		if (!split || split->type != YAML_SEQUENCE_NODE)
			return LLMC_OK;
		for (yaml_node_item_t *k = split->data.sequence.items.start;
		     k < split->data.sequence.items.top; k++) {
			size_t n;
			const char *s = scalar(yaml_document_get_node(d, *k), &n);
			if (s) {
				strbuf_add(exprs, &n, sizeof n);
				strbuf_add(exprs, s, n);
			}
		}
		return LLMC_OK;
	}
	return LLMC_OK;
}

llmc_status
pretokenizer_load(llmc_tokenizer *t, ByteSpan name, bool *add_bos, llmc_error *err)
{
	yaml_document_t d;
	bool found;

	if (!open_doc(&d))
		return error_set(err, LLMC_E_BUG,
		                 FILE_NAME " cannot be read: it belongs to the library itself");
	strbuf_clear(&t->scratch);
	copy_entry(&d, name, &t->scratch, add_bos, &t->ignore_merges, &found);
	yaml_document_delete(&d);
	if (t->scratch.failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	if (!found)
		return error_set(err, LLMC_E_INPUT,
		                 "tokenizer.ggml.pre is \"%.*s\", which " FILE_NAME
		                 " does not list: add an entry with its split expressions",
		                 (int)(name.n < 60 ? name.n : 60), name.s);
	for (size_t at = 0, n; at < t->scratch.len; at += n) {
		pcre2_code *re;
		memcpy(&n, t->scratch.data + at, sizeof n);
		at += sizeof n;
		TRY(regex_compile(t, FILE_NAME, (ByteSpan){ t->scratch.data + at, n }, &re, err));
		PreTokenizer *p = pre_add(t, PRE_SPLIT);
		p->regex = re;
		p->mode = SPLIT_ISOLATED;
	}
	return LLMC_OK;
}

bool
pretokenizer_characters(ByteSpan name)
{
	yaml_document_t d;

	if (!open_doc(&d))
		return false;
	const bool found =
	    lists(&d, value(&d, yaml_document_get_root_node(&d), "characters"), name);
	yaml_document_delete(&d);
	return found;
}

static bool
has_exprs(yaml_document_t *d, const yaml_node_t *split, const char *exprs, size_t n)
{
	if (!split || split->type != YAML_SEQUENCE_NODE)
		return false;
	for (yaml_node_item_t *k = split->data.sequence.items.start;
	     k < split->data.sequence.items.top; k++) {
		size_t own = n ? strlen(exprs) : 0;
		if (!n || !is(yaml_document_get_node(d, *k), exprs, own))
			return false;
		exprs += own + 1;
		n -= own + 1;
	}
	return n == 0;
}

bool
pretokenizer_name(const char *exprs, size_t n, bool ignore_merges, char name[64])
{
	yaml_document_t d;
	bool found = false;

	if (!open_doc(&d))
		return false;
	yaml_node_t *list = value(&d, yaml_document_get_root_node(&d), "pretokenizers");
	for (yaml_node_item_t *i = list ? list->data.sequence.items.start : NULL;
	     list && !found && i < list->data.sequence.items.top; i++) {
		yaml_node_t *entry = yaml_document_get_node(&d, *i),
		            *names = value(&d, entry, "names");
		size_t len = 0;
		if (is(value(&d, entry, "ignore_merges"), "true", 4) != ignore_merges ||
		    !has_exprs(&d, value(&d, entry, "split"), exprs, n) || !names ||
		    names->type != YAML_SEQUENCE_NODE)
			continue;
		const char *s =
		    scalar(yaml_document_get_node(&d, *names->data.sequence.items.start), &len);
		found = s && len < 64;
		if (found)
			memcpy(name, s, len), name[len] = 0;
	}
	yaml_document_delete(&d);
	return found;
}

static void
copy_text(yaml_document_t *d, const yaml_node_t *entry, const char *key, char out[64])
{
	size_t n = 0;
	const char *s = scalar(value(d, entry, key), &n);

	snprintf(out, 64, "%.*s", s ? (int)n : 0, s ? s : "");
}

static int32_t
number(yaml_document_t *d, const yaml_node_t *entry, const char *key)
{
	char text[64];

	copy_text(d, entry, key, text);
	return (int32_t)strtol(text, NULL, 10);
}

bool
pretokenizer_ranks(int32_t ranks, int32_t n_ids, RankTokens *out, Strbuf *named)
{
	yaml_document_t d;
	bool found = false;

	if (!open_doc(&d))
		return false;
	yaml_node_t *list = value(&d, yaml_document_get_root_node(&d), "ranks");
	for (yaml_node_item_t *i = list ? list->data.sequence.items.start : NULL;
	     list && !found && i < list->data.sequence.items.top; i++) {
		yaml_node_t *entry = yaml_document_get_node(&d, *i),
		            *names = value(&d, entry, "named");
		*out = (RankTokens){ .n = number(&d, entry, "tokens"),
			             .others_from = number(&d, entry, "others_from") };
		found = n_ids ? n_ids == ranks + out->n : ranks == number(&d, entry, "ranks");
		if (!found)
			continue;
		copy_text(&d, entry, "pretokenizer", out->pretokenizer);
		copy_text(&d, entry, "bos", out->bos);
		copy_text(&d, entry, "others", out->others);
		for (yaml_node_item_t *k = names->data.sequence.items.start;
		     k < names->data.sequence.items.top; k++, out->n_named++) {
			size_t n = 0;
			const char *s = scalar(yaml_document_get_node(&d, *k), &n);
			strbuf_add(named, s ? s : "", n);
			strbuf_putc(named, 0);
		}
	}
	yaml_document_delete(&d);
	return found;
}

bool
end_list_open(llmc_tokenizer *t)
{
	yaml_document_t d;

	strbuf_clear(&t->scratch);
	if (!open_doc(&d))
		return false;
	yaml_node_t *list = value(&d, yaml_document_get_root_node(&d), "end_of_generation");
	if (list && list->type == YAML_SEQUENCE_NODE) {
		for (yaml_node_item_t *i = list->data.sequence.items.start;
		     i < list->data.sequence.items.top; i++) {
			size_t n;
			const char *s = scalar(yaml_document_get_node(&d, *i), &n);
			if (s) {
				strbuf_add(&t->scratch, "\n", 1);
				strbuf_add(&t->scratch, s, n);
			}
		}
		strbuf_add(&t->scratch, "\n", 1);
	}
	yaml_document_delete(&d);
	return !t->scratch.failed;
}

bool
ends_generation(const llmc_tokenizer *t, ByteSpan token)
{
	const char *p = strbuf_str(&t->scratch), *end = p + t->scratch.len;

	if (!token.n || memchr(token.s, '\n', token.n))
		return false;
	while ((p = memmem(p, (size_t)(end - p), token.s, token.n))) {
		if (p > t->scratch.data && p[-1] == '\n' && p[token.n] == '\n')
			return true;
		p++;
	}
	return false;
}
