/* icetk tokenizers: sentencepiece plus the additions in their Python code. In the first version,
 * line ends, tabs and runs of spaces are separate tokens. Later versions have tokens after the last
 * sentencepiece token; two of these begin every input. The dialogues of both versions have no chat
 * template. */
#include "text/text.h"

#include <stdio.h>
#include <string.h>

/* "question" and "answer" in Chinese, each with a full-width colon */
#define ASK "\xe9\x97\xae\xef\xbc\x9a"
#define ANSWER "\xe7\xad\x94\xef\xbc\x9a"

/* Rounds are numbered from `first`; `gap` separates their parts. If there is no earlier round, the
 * question is used unchanged. */
#define ROUNDS(first, gap, bare)                                                                   \
	"{%- set ns = namespace(round=" first                                                      \
	") -%}{%- for m in messages -%}{%- if m.role == 'user' -%}"                                \
	"{%- if " bare " -%}{{- m.content -}}{%- else -%}"                                         \
	"{{- '[Round ' ~ ns.round ~ ']" gap ASK "' ~ m.content ~ '" gap ANSWER                     \
	"' -}}{%- set ns.round = ns.round + 1 -%}{%- endif -%}"                                    \
	"{%- elif m.role == 'assistant' -%}{{- m.content ~ '" gap                                  \
	"' -}}{%- elif m.role == 'system' -%}{{- m.content ~ '" gap                                \
	"' -}}{%- endif -%}{%- endfor -%}"

/* Adds the tokens for whitespace. The model finds a token by its name; its decoded form is the
 * whitespace. */
llmc_status
ice_blanks(llmc_tokenizer *t, llmc_error *err)
{
	static const char *const ends[] = { "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>" };
	char name[40], blank[ICE_BLANKS + 1];

	normalizer_add(t, NORMALIZE_ICE);
	memset(blank, ' ', sizeof blank);
	for (int n = 0; n <= ICE_BLANKS; n++) {
		if (n >= 2)
			snprintf(name, sizeof name, "<|blank_%d|>", n);
		else
			snprintf(name, sizeof name, "%s", n == 0 ? "<n>" : "<|tab|>");
		int32_t id = strmap_get(&t->vocab, name, strlen(name));
		if (id >= 0)
			tokenizer_set(t, id,
			              n == 0   ? (ByteSpan){ "\n", 1 }
			              : n == 1 ? (ByteSpan){ "\t", 1 }
			                       : (ByteSpan){ blank, (size_t)n });
	}
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		const ByteSpan s = { ends[i], strlen(ends[i]) };
		int32_t id = strmap_get(&t->vocab, s.s, s.n);
		if (id >= 0)
			TRY(added_add(t, (AddedToken){ .id = id, .text = s, .special = true },
			              err));
	}
	t->chat = ROUNDS("0", "\\n", "messages|length == 1") "{{- '[gMASK]<sop>' -}}";
	return LLMC_OK;
}

/* Replaces line ends, tabs and runs of 2 to 80 spaces by the tokens for whitespace. */
ByteSpan
ice_normalize(Enc *e, ByteSpan in)
{
	char *out = NULL, piece[40];
	size_t n = 0, cap = 0;

	for (size_t i = 0; i < in.n;) {
		size_t run = 1;
		while (in.s[i] == ' ' && run < ICE_BLANKS && i + run < in.n && in.s[i + run] == ' ')
			run++;
		if (run > 1)
			snprintf(piece, sizeof piece, "<|blank_%zu|>", run);
		else if (in.s[i] == '\n' || in.s[i] == '\t')
			snprintf(piece, sizeof piece, "%s", in.s[i] == '\n' ? "<n>" : "<|tab|>");
		else
			snprintf(piece, sizeof piece, "%c", in.s[i]);
		size_t len = in.s[i] ? strlen(piece) : 1;
		out = arena_grow(&e->arena, out, &cap, n + len, 1);
		memcpy(out + n, piece, len);
		n += len;
		i += run;
	}
	return (ByteSpan){ out ? out : "", n };
}

/* Adds the tokens of later versions. first: id after the last sentencepiece token. [gMASK] and sop
 * begin every input */
llmc_status
ice_tokens(llmc_tokenizer *t, int32_t first, llmc_error *err)
{
	static const char *const names[] = { "[MASK]",   "[gMASK]",       "[sMASK]",
		                             "sop",      "eop",           "<|system|>",
		                             "<|user|>", "<|assistant|>", "<|observation|>" };
	enum { N = sizeof names / sizeof *names };
	const int32_t n = first + N > t->n_ids ? first + N : t->n_ids;
	Token *tok = NEW(&t->arena, Token, n);

	memcpy(tok, t->tok, (size_t)t->n_ids * sizeof *tok);
	t->tok = tok;
	t->n_ids = n;
	for (int i = 0; i < N; i++) {
		const ByteSpan s = { names[i], strlen(names[i]) };
		tokenizer_set(t, first + i, s);
		tok[first + i].type = TT_CONTROL;
		TRY(added_add(t, (AddedToken){ .id = first + i, .text = s, .special = true }, err));
	}
	t->prefix = NEW(&t->arena, int32_t, 2);
	t->prefix[0] = first + 1;
	t->prefix[1] = first + 3;
	t->n_prefix = 2;
	t->chat = ROUNDS("1", "\\n\\n", "false");
	return LLMC_OK;
}
