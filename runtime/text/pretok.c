/* Pre-tokenizers: cut pieces of text into words. Pieces that are added tokens already pass through. */
#include "runtime/text/text.h"

#include <string.h>

void
piece_push(Enc *e, Pieces *p, Span text, int32_t id, bool first)
{
	p->v = arena_grow(&e->arena, p->v, &p->cap, p->n + 1, sizeof *p->v);
	p->v[p->n++] = (Piece){ text, id, first };
}

uint32_t
bytelevel_char(unsigned char b)
{
	/* printable Latin-1 stands for itself, the other 68 bytes follow from U+0100 on, in order */
	if ((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE)
		return b;
	if (b <= 0x20)
		return 0x100u + b;
	if (b <= 0xA0)
		return 0x100u + 0x21 + (b - 0x7Fu);
	return 0x100u + 0x21 + 0x22;
}

int
bytelevel_byte(uint32_t cp)
{
	if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xAC) || (cp >= 0xAE && cp <= 0xFF))
		return (int)cp;
	if (cp >= 0x100 && cp <= 0x120)
		return (int)(cp - 0x100);
	if (cp >= 0x121 && cp <= 0x142)
		return (int)(cp - 0x121 + 0x7F);
	return cp == 0x143 ? 0xAD : -1;
}

typedef struct Part {
	size_t from, to;
	bool   match;
} Part;

typedef struct Parts {
	Part  *v;
	size_t n, cap;
} Parts;

static void
part_push(Enc *e, Parts *p, size_t from, size_t to, bool match)
{
	p->v = arena_grow(&e->arena, p->v, &p->cap, p->n + 1, sizeof *p->v);
	p->v[p->n++] = (Part){ from, to, match };
}

/* Matches and the gaps between them cover the text. */
static llmc_status
find_regex(Enc *e, const Pre *pre, Span text, Parts *out)
{
	RegexIter it = { 0 };
	size_t from, to, done = 0;
	int rc;

	while ((rc = regex_next(pre->regex, e->match, e->t->limits, text, &it, &from, &to)) > 0) {
		if (from > done)
			part_push(e, out, done, from, false);
		part_push(e, out, from, to, true);
		done = to;
	}
	if (rc < 0)
		return regex_failed(e->err, rc);
	if (done < text.n)
		part_push(e, out, done, text.n, false);
	return LLMC_OK;
}

static void
find_class(Enc *e, const Pre *pre, Span text, Parts *out)
{
	size_t done = 0;

	for (size_t i = 0, len; i < text.n; i += len) {
		uint32_t cp = (uint32_t)utf8_next(text.s + i, text.n - i, &len);
		bool yes = false;
		switch (pre->cls) {
		case CLASS_DIGIT:
			yes = cp_is_numeric(cp);
			break;
		case CLASS_PUNCT:
			yes = cp_is_punct(cp);
			break;
		case CLASS_SPACE:
			yes = cp_is_space(cp);
			break;
		case CLASS_CHAR:
			yes = cp == pre->cp;
			break;
		}
		if (!yes)
			continue;
		if (i > done)
			part_push(e, out, done, i, false);
		part_push(e, out, i, i + len, true);
		done = i + len;
	}
	if (done < text.n)
		part_push(e, out, done, text.n, false);
}

static void
join_parts(Enc *e, SplitMode mode, const Parts *in, Parts *out)
{
	bool last = false;

	switch (mode) {
	case SPLIT_REMOVED:
		for (size_t i = 0; i < in->n; i++)
			if (!in->v[i].match)
				part_push(e, out, in->v[i].from, in->v[i].to, false);
		break;
	case SPLIT_ISOLATED:
		*out = *in;
		break;
	case SPLIT_CONTIGUOUS:
	case SPLIT_PREVIOUS:
		for (size_t i = 0; i < in->n; i++) {
			bool match = in->v[i].match;
			bool join = mode == SPLIT_CONTIGUOUS ? match == last : match && !last;
			if (join && out->n)
				out->v[out->n - 1].to = in->v[i].to;
			else
				part_push(e, out, in->v[i].from, in->v[i].to, match);
			last = match;
		}
		break;
	case SPLIT_NEXT: {
		Parts back = { 0 };
		for (size_t i = in->n; i-- > 0;) {
			bool match = in->v[i].match;
			if (match && !last && back.n)
				back.v[back.n - 1].from = in->v[i].from;
			else
				part_push(e, &back, in->v[i].from, in->v[i].to, match);
			last = match;
		}
		for (size_t i = back.n; i-- > 0;)
			part_push(e, out, back.v[i].from, back.v[i].to, back.v[i].match);
		break;
	}
	}
}

static llmc_status
split(Enc *e, const Pre *pre, const Piece *in, Pieces *out)
{
	Parts parts = { 0 }, joined = { 0 };

	if (pre->regex)
		TRY(find_regex(e, pre, in->text, &parts));
	else
		find_class(e, pre, in->text, &parts);
	for (size_t i = 0; pre->invert && i < parts.n; i++)
		parts.v[i].match = !parts.v[i].match;
	join_parts(e, pre->mode, &parts, &joined);
	for (size_t i = 0; i < joined.n; i++) {
		Part p = joined.v[i];
		if (p.to > p.from)
			piece_push(e, out, (Span){ in->text.s + p.from, p.to - p.from }, -1, in->first && p.from == 0);
	}
	return LLMC_OK;
}

static Span
prepend(Enc *e, Span head, Span in)
{
	char *p = NEW(&e->arena, char, head.n + in.n + 1);

	if (head.n)
		memcpy(p, head.s, head.n);
	if (in.n)
		memcpy(p + head.n, in.s, in.n);
	return (Span){ p, head.n + in.n };
}

static llmc_status
metaspace(Enc *e, const Pre *pre, const Piece *in, Pieces *out)
{
	Span r = pre->replacement, text = in->text;
	char *p = NEW(&e->arena, char, text.n * (r.n ? r.n : 1) + 1);
	size_t n = 0;

	for (size_t i = 0; i < text.n; i++) {
		if (text.s[i] == ' ') {
			memcpy(p + n, r.s, r.n);
			n += r.n;
		} else {
			p[n++] = text.s[i];
		}
	}
	text = (Span){ p, n };
	if (text.n && !(text.n >= r.n && memcmp(text.s, r.s, r.n) == 0) &&
	    (pre->prepend == PREPEND_ALWAYS || (pre->prepend == PREPEND_FIRST && in->first)))
		text = prepend(e, r, text);
	Piece whole = { text, -1, in->first };
	if (pre->split)
		return split(e, pre, &whole, out);
	if (text.n)
		piece_push(e, out, text, -1, in->first);
	return LLMC_OK;
}

llmc_status
pretokenize(Enc *e, Pieces *p)
{
	for (size_t k = 0; k < e->t->n_pre; k++) {
		const Pre *pre = &e->t->pre[k];
		Pieces out = { 0 };
		for (size_t i = 0; i < p->n; i++) {
			const Piece *in = &p->v[i];
			if (in->id >= 0) {
				piece_push(e, &out, in->text, in->id, in->first);
				continue;
			}
			switch (pre->kind) {
			case PRE_SPLIT:
			case PRE_CLASS:
				TRY(split(e, pre, in, &out));
				break;
			case PRE_METASPACE:
				TRY(metaspace(e, pre, in, &out));
				break;
			case PRE_PREFIX_SPACE:
				if (in->text.n)
					piece_push(e, &out, in->text.s[0] == ' ' ? in->text
					                    : prepend(e, (Span){ " ", 1 }, in->text),
					           -1, in->first);
				break;
			case PRE_BYTES: {
				char *s = NEW(&e->arena, char, in->text.n * 2 + 4);
				size_t n = 0;
				for (size_t j = 0; j < in->text.n; j++)
					n += utf8_put(s + n, bytelevel_char((unsigned char)in->text.s[j]));
				piece_push(e, &out, (Span){ s, n }, -1, in->first);
				break;
			}
			}
		}
		*p = out;
	}
	return LLMC_OK;
}
