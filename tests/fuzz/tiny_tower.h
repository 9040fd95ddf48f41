/* A small vision tower with seeded noise as weights, for fuzzers: of SmolVLM's kind, with two
 * layers and 32 x 32 pixels per tile. */
#ifndef TESTS_FUZZ_TINY_TOWER_H
#define TESTS_FUZZ_TINY_TOWER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "llmc.h"

enum { TINY_TOWER_HIDDEN = 48 };

static const struct {
	const char *name, *text;
} tiny_tower_file[] = {
	{ "config.json",
	  "{\"model_type\":\"smolvlm\",\"image_token_id\":5,\"scale_factor\":2,\"pad_token_id\":0,"
	  "\"torch_dtype\":\"float32\",\"text_config\":{\"model_type\":\"llama\",\"vocab_size\":"
	  "131,\"hidden_size\":48,\"intermediate_size\":64,\"num_hidden_layers\":2,"
	  "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":8,"
	  "\"max_position_embeddings\":256,\"rms_norm_eps\":0.001,\"rope_theta\":500.0,"
	  "\"bos_token_id\":1,\"eos_token_id\":2},\"vision_config\":{\"hidden_size\":36,"
	  "\"intermediate_size\":50,\"num_hidden_layers\":2,\"num_attention_heads\":3,"
	  "\"num_channels\":3,\"image_size\":32,\"patch_size\":8,\"layer_norm_eps\":0.001,"
	  "\"hidden_act\":\"gelu_pytorch_tanh\"}}" },
	{ "preprocessor_config.json",
	  "{\"image_processor_type\":\"SmolVLMImageProcessor\",\"do_resize\":true,\"size\":"
	  "{\"longest_edge\":64},\"resample\":1,\"do_image_splitting\":true,\"max_image_size\":"
	  "{\"longest_edge\":32},\"do_pad\":true,\"do_normalize\":true,\"image_mean\":[0.5,0.5,"
	  "0.5],\"image_std\":[0.5,0.5,0.5],\"do_convert_rgb\":true,\"do_rescale\":true,"
	  "\"rescale_factor\":0.00392156862745098}" },
	{ "processor_config.json",
	  "{\"processor_class\":\"Idefics3Processor\",\"image_seq_len\":4}" },
	{ "tokenizer_config.json",
	  "{\"extra_special_tokens\":{\"image_token\":\"<image>\",\"fake_image_token\":"
	  "\"<fake_token_around_image>\",\"global_image_token\":\"<global-img>\"}}" },
};

/* Open the tower; it lives until the process ends. */
static inline llmc_tower *
tiny_tower(void)
{
	enum { FILES = sizeof tiny_tower_file / sizeof *tiny_tower_file };
	char dir[64], path[128];
	const char *set[] = { "vision.part=rows", NULL };
	llmc_options o = LLMC_INIT(llmc_options);
	llmc_model *m = NULL;
	llmc_tower *t = NULL;
	llmc_error err = { 0 };

	snprintf(dir, sizeof dir, "%s/llmc-tower.XXXXXX",
	         access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	if (!mkdtemp(dir))
		abort();
	for (int i = 0; i < FILES; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, tiny_tower_file[i].name);
		FILE *f = fopen(path, "w");
		if (!f || fputs(tiny_tower_file[i].text, f) < 0 || fclose(f) != 0)
			abort();
	}
	o.device = "ref";
	o.random_weights = true;
	o.n_threads = 1;
	o.set = set;
	o.out_dir = dir; /* a fixed folder replaces the cache */
	llmc_status s = llmc_open(dir, &o, &m, &err);
	o.set = NULL;
	if (s == LLMC_OK)
		s = llmc_tower_open(m, &o, &t, &err);
	if (s != LLMC_OK) {
		fprintf(stderr, "the tower does not open: %s\n", err.text);
		abort();
	}
	llmc_close(m); /* the tower keeps a reference */
	file_remove_tree(dir);
	return t;
}

#endif
