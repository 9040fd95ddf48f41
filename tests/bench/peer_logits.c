/* Logits of llama.cpp: peer_logits MODEL THREADS ID,ID,... N writes N rows of fp32 [vocab] to
 * stdout, after the prompt and after each greedily sampled token. peer.py --check links it with a
 * build of llama.cpp. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

enum { MAX_TOKENS = 4096 };

static void
quiet(enum ggml_log_level level, const char *text, void *user)
{
	(void)user;
	if (level == GGML_LOG_LEVEL_ERROR)
		fputs(text, stderr);
}

int
main(int argc, char **argv)
{
	static llama_token tok[MAX_TOKENS];
	int n_tok = 0;

	if (argc != 5)
		return 2;
	for (char *at = strtok(argv[3], ","); at && n_tok < MAX_TOKENS; at = strtok(NULL, ","))
		tok[n_tok++] = atoi(at);
	llama_log_set(quiet, NULL);
	llama_backend_init();
	struct llama_model_params mp = llama_model_default_params();
	/* llama.cpp's AMX buffers reject some tensors of latent attention */
	mp.use_extra_bufts = false;
	struct llama_model *m = llama_model_load_from_file(argv[1], mp);
	if (!m)
		return 1;
	struct llama_context_params cp = llama_context_default_params();
	cp.n_ctx = (uint32_t)(n_tok + atoi(argv[4]) + 64);
	cp.n_threads = cp.n_threads_batch = atoi(argv[2]);
	struct llama_context *c = llama_init_from_model(m, cp);
	int32_t vocab = llama_vocab_n_tokens(llama_model_get_vocab(m));
	if (!c)
		return 1;
	for (int n = atoi(argv[4]); n > 0; n--) {
		if (llama_decode(c, llama_batch_get_one(tok, n_tok)))
			return 1;
		const float *logits = llama_get_logits_ith(c, -1);
		if (fwrite(logits, sizeof *logits, (size_t)vocab, stdout) != (size_t)vocab)
			return 1;
		tok[0] = 0;
		n_tok = 1;
		for (int32_t i = 1; i < vocab; i++)
			if (logits[i] > logits[tok[0]])
				tok[0] = i;
	}
	return 0;
}
