/* Imports malformed GGUF files of models with MoE, latent attention or vision towers. A file is
 * either rejected with a message, or compiled and its weights packed.
 *
 * An input is a list of edits to the header of a valid file, which is built here. Byte 0 selects
 * the file, then 4 bytes per edit: key or tensor, operation, operand (16 bits). Data after the
 * header is zero; packed data must come from within the file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "compiler/compile.h"
#include "formats/dtype.h"
#include "formats/gguf.h"
#include "runtime/weights/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_KEYS = 48, MAX_TENSORS = 96, MAX_EDITS = 6, MAX_FILE = 1 << 22 };

typedef struct Key {
	char name[64];
	uint32_t type;
	double num;
	uint64_t count;
	const char *text; /* the value of a string; NULL stands for "yarn" */
} Key;                    /* an array has `count` elements of value `num`; type 8: string */
typedef struct Tensor {
	char name[64];
	uint32_t n_dims;
	uint64_t dim[4];
	uint32_t type;
} Tensor;
typedef struct File {
	const char *arch;
	int n_key, n_tensor;
	Key key[MAX_KEYS];
	Tensor tensor[MAX_TENSORS];
} File;

enum { F32, F16, Q4_0 = 2, Q8_0 = 8, Q4_K = 12 };

static void
die(const char *what, const char *text)
{
	fprintf(stderr, "fuzz_import: %s: %s\n", what, text);
	abort();
}

/* ---- valid files ---- */

/* Returns u32 if that type can hold v, else f32. */
static uint32_t
number_type(double v)
{
	return v >= 0 && v <= UINT32_MAX && v == (double)(uint32_t)v ? 4 : 6;
}

static void
key(File *f, const char *name, double v)
{
	Key *k = &f->key[f->n_key++];

	*k = (Key){ .type = number_type(v), .num = v };
	snprintf(k->name, sizeof k->name, "%s.%s", f->arch, name);
}

static void
tensor(File *f, int layer, const char *name, uint32_t type, uint64_t a, uint64_t b, uint64_t c)
{
	Tensor *t = &f->tensor[f->n_tensor++];

	*t = (Tensor){ .n_dims = c   ? 3
		                 : b ? 2
		                     : 1,
		       .dim = { a, b ? b : 1, c ? c : 1, 1 },
		       .type = b ? type : F32 };
	if (layer < 0)
		snprintf(t->name, sizeof t->name, "%s", name);
	else
		snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
}

enum {
	H = 64,
	FFN = 96,
	WIDE = 32,
	HEADS = 2,
	NOPE = 32,
	ROPE = 16,
	V = 32,
	RANK = 64,
	EXPERTS = 5,
	LAYERS = 2,
	VOCAB = 40
};

static void
common(File *f, const char *arch, int layers)
{
	*f = (File){ .arch = arch };
	key(f, "block_count", layers);
	key(f, "context_length", 64);
	key(f, "embedding_length", H);
	key(f, "feed_forward_length", FFN);
	key(f, "attention.head_count", HEADS);
	key(f, "attention.layer_norm_rms_epsilon", 1e-5);
	key(f, "rope.freq_base", 10000);
	key(f, "expert_count", EXPERTS);
	key(f, "expert_used_count", 2);
	key(f, "expert_feed_forward_length", WIDE);
	tensor(f, -1, "token_embd.weight", Q8_0, H, VOCAB, 0);
	tensor(f, -1, "output_norm.weight", F32, H, 0, 0);
	tensor(f, -1, "output.weight", Q8_0, H, VOCAB, 0);
}

static void
experts(File *f, int l, uint32_t down)
{
	tensor(f, l, "ffn_gate_inp.weight", F32, H, EXPERTS, 0);
	tensor(f, l, "ffn_gate_exps.weight", Q4_0, H, WIDE, EXPERTS);
	tensor(f, l, "ffn_up_exps.weight", Q4_0, H, WIDE, EXPERTS);
	tensor(f, l, "ffn_down_exps.weight", down, WIDE, H, EXPERTS);
}

static void
latent(File *f, bool v3, bool older)
{
	common(f, "deepseek2", LAYERS + v3);
	key(f, "attention.head_count_kv", older ? HEADS : 1);
	key(f, "attention.kv_lora_rank", RANK);
	key(f, "attention.key_length", older ? NOPE + ROPE : RANK + ROPE);
	key(f, "attention.value_length", older ? V : RANK);
	if (!older) {
		key(f, "attention.key_length_mla", NOPE + ROPE);
		key(f, "attention.value_length_mla", V);
		key(f, "expert_gating_func", v3 ? 2 : 1);
		key(f, "expert_group_count", 1);
		key(f, "expert_group_used_count", 1);
		key(f, "expert_weights_norm", v3);
	}
	key(f, "rope.dimension_count", ROPE);
	key(f, "leading_dense_block_count", 1);
	key(f, "expert_shared_count", 1);
	key(f, "expert_weights_scale", 2.5);
	if (v3) {
		key(f, "nextn_predict_layers", 1);
		key(f, "rope.scaling.yarn_log_multiplier", 0.1);
		key(f, "rope.scaling.factor", 4);
		key(f, "rope.scaling.original_context_length", 16);
		Key *type = &f->key[f->n_key++];
		*type = (Key){ .type = 8 };
		snprintf(type->name, sizeof type->name, "deepseek2.rope.scaling.type");
	}
	for (int l = 0; l < LAYERS + v3; l++) {
		tensor(f, l, "attn_norm.weight", F32, H, 0, 0);
		tensor(f, l, "ffn_norm.weight", F32, H, 0, 0);
		tensor(f, l, "attn_q.weight", Q4_0, H, HEADS * (NOPE + ROPE), 0);
		tensor(f, l, "attn_kv_a_mqa.weight", Q8_0, H, RANK + ROPE, 0);
		tensor(f, l, "attn_kv_a_norm.weight", F32, RANK, 0, 0);
		tensor(f, l, "attn_output.weight", Q4_0, HEADS * V, H, 0);
		if (older) {
			tensor(f, l, "attn_kv_b.weight", Q8_0, RANK, HEADS * (NOPE + V), 0);
		} else {
			tensor(f, l, "attn_k_b.weight", l ? Q8_0 : Q4_0, NOPE, RANK, HEADS);
			tensor(f, l, "attn_v_b.weight", Q4_0, RANK, V, HEADS);
		}
		if (l == 0) {
			tensor(f, l, "ffn_gate.weight", Q4_0, H, FFN, 0);
			tensor(f, l, "ffn_up.weight", Q4_0, H, FFN, 0);
			tensor(f, l, "ffn_down.weight", Q8_0, FFN, H, 0);
			continue;
		}
		experts(f, l, l == 1 ? Q8_0 : Q4_0);
		tensor(f, l, "ffn_gate_shexp.weight", Q4_0, H, WIDE, 0);
		tensor(f, l, "ffn_up_shexp.weight", Q4_0, H, WIDE, 0);
		tensor(f, l, "ffn_down_shexp.weight", Q4_0, WIDE, H, 0);
		if (v3)
			tensor(f, l, "exp_probs_b.bias", F32, EXPERTS, 0, 0);
		if (l >= LAYERS)
			tensor(f, l, "nextn.eh_proj.weight", F16, 2 * H, H, 0);
	}
}

static void
mixture(File *f, bool mixtral)
{
	common(f, mixtral ? "llama" : "qwen3moe", LAYERS);
	key(f, "attention.head_count_kv", 1);
	key(f, "attention.key_length", WIDE);
	key(f, "rope.dimension_count", WIDE);
	for (int l = 0; l < LAYERS; l++) {
		tensor(f, l, "attn_norm.weight", F32, H, 0, 0);
		tensor(f, l, "ffn_norm.weight", F32, H, 0, 0);
		tensor(f, l, "attn_q.weight", Q4_0, H, HEADS * WIDE, 0);
		tensor(f, l, "attn_k.weight", Q4_0, H, WIDE, 0);
		tensor(f, l, "attn_v.weight", Q8_0, H, WIDE, 0);
		tensor(f, l, "attn_output.weight", Q4_0, HEADS * WIDE, H, 0);
		if (!mixtral) {
			tensor(f, l, "attn_q_norm.weight", F32, WIDE, 0, 0);
			tensor(f, l, "attn_k_norm.weight", F32, WIDE, 0, 0);
		}
		experts(f, l, l ? Q8_0 : Q4_0);
	}
}

static void
text_key(File *f, const char *name, const char *text)
{
	key(f, name, 0);
	f->key[f->n_key - 1].type = 8;
	f->key[f->n_key - 1].text = text;
}

/* Writes a vision tower with squares of 2 x 2 patches: that of Qwen3-VL, SmolVLM or LLaVA. */
static void
tower(File *f, const char *type)
{
	const bool qwen = *type == 'q', class_row = *type == 'm';
	char name[64];

	*f = (File){ .arch = "clip" };
	text_key(f, "projector_type", type);
	key(f, "vision.image_size", 32);
	key(f, "vision.patch_size", 8);
	key(f, "vision.embedding_length", H);
	key(f, "vision.feed_forward_length", FFN);
	key(f, "vision.block_count", LAYERS);
	key(f, "vision.projection_dim", WIDE);
	key(f, "vision.attention.head_count", HEADS);
	key(f, "vision.attention.layer_norm_epsilon", 1e-5);
	if (qwen) {
		key(f, "vision.spatial_merge_size", 2);
		key(f, "vision.is_deepstack_layers", 1);
		f->key[f->n_key - 1].type = 7;
		f->key[f->n_key - 1].count = LAYERS;
	}
	tensor(f, -1, "v.patch_embd.weight", F32, 8, 8, 3);
	f->tensor[0].n_dims = 4;
	f->tensor[0].dim[3] = H;
	if (qwen) {
		f->tensor[f->n_tensor++] = f->tensor[0];
		snprintf(f->tensor[1].name, sizeof f->tensor[1].name, "v.patch_embd.weight.1");
	}
	if (class_row)
		tensor(f, -1, "v.class_embd", F32, H, 0, 0);
	else
		tensor(f, -1, "v.patch_embd.bias", F32, H, 0, 0);
	tensor(f, -1, "v.position_embd.weight", F32, H, class_row ? 17 : 16, 0);
	for (int i = 0; i < 2; i++) {
		const char *const end = i ? "bias" : "weight";
		static const char *const outer[] = { "v.post_ln", "v.pre_ln" };
		snprintf(name, sizeof name, "%s.%s", outer[class_row], end);
		tensor(f, -1, name, F32, H, 0, 0);
		for (int l = 0; l < LAYERS; l++) {
			static const struct {
				const char *name;
				int in, out;
			} rows[] = { { "ln1", 0, H },        { "ln2", 0, H },
				     { "attn_out", H, H },   { "ffn_up", H, FFN },
				     { "ffn_down", FFN, H }, { "attn_qkv", H, 3 * H },
				     { "attn_q", H, H },     { "attn_k", H, H },
				     { "attn_v", H, H } };
			for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
				if (k > 4 && (k == 5) != qwen)
					continue;
				snprintf(name, sizeof name, "v.blk.%d.%s.%s", l, rows[k].name, end);
				if (i || !rows[k].in)
					tensor(f, -1, name, F32, (uint64_t)rows[k].out, 0, 0);
				else
					tensor(f, -1, name, Q8_0, (uint64_t)rows[k].in,
					       (uint64_t)rows[k].out, 0);
			}
		}
		static const char *const mergers[] = { "mm.0",
			                               "mm.2",
			                               "v.deepstack.0.fc1",
			                               "v.deepstack.0.fc2",
			                               "v.deepstack.1.fc1",
			                               "v.deepstack.1.fc2" };
		const uint64_t width = qwen ? 4 * H : H;
		for (int k = 0; k < (qwen ? 6 : class_row ? 2 : 0); k++) {
			snprintf(name, sizeof name, "%s.%s", mergers[k], end);
			tensor(f, -1, name, Q8_0, i ? (k % 2 ? WIDE : width) : width,
			       i       ? 0
			       : k % 2 ? WIDE
			               : width,
			       0);
		}
		for (int l = 0; qwen && l < LAYERS; l++) {
			snprintf(name, sizeof name, "v.deepstack.%d.norm.%s", l, end);
			tensor(f, -1, name, F32, width, 0, 0);
		}
	}
	if (!qwen && !class_row)
		tensor(f, -1, "mm.model.fc.weight", Q8_0, 4 * H, WIDE, 0);
}

static const char *const more_keys[] = { "expert_gating_func",
	                                 "expert_weights_scale",
	                                 "expert_weights_norm",
	                                 "nextn_predict_layers",
	                                 "leading_dense_block_count",
	                                 "expert_shared_count",
	                                 "expert_group_count",
	                                 "expert_group_used_count",
	                                 "attention.q_lora_rank",
	                                 "rope.scaling.attn_factor",
	                                 "rope.scaling.yarn_log_multiplier",
	                                 "rope.scaling.factor",
	                                 "attention.causal",
	                                 "attention.key_length_mla",
	                                 "attention.value_length_mla",
	                                 "attention.sliding_window",
	                                 "split.count",
	                                 "vision.projector.scale_factor",
	                                 "vision.is_deepstack_layers",
	                                 "vision.feature_layer",
	                                 "use_gelu",
	                                 "interleave_moe_layer_step" };

static const double numbers[] = { 0,   1,   2,     3,    4,     5,       7,          8,
	                          16,  31,  32,    33,   48,    64,      80,         96,
	                          128, 255, 256,   1024, 65536, 1 << 20, 2147483647, 4294967295.0,
	                          -1,  0.5, 1e-30, 1e30, 0.1,   2.5 };

/* ---- edits ---- */

static void
edit_key(File *f, unsigned which, unsigned what, unsigned with)
{
	Key *k = &f->key[which % (unsigned)f->n_key];
	double v = numbers[with % (sizeof numbers / sizeof *numbers)];

	switch (what % 8) {
	case 0:
	case 1:
		k->num = v;
		k->type = number_type(v);
		return;
	case 2:
		*k = f->key[--f->n_key];
		return;
	case 3:
		k->type = with % 13;
		return;
	case 4: /* the key gets one value per layer */
		k->count = with % 70;
		return;
	case 5:
		k->num += with & 1 ? 1 : -1;
		return;
	default:
		if (f->n_key < MAX_KEYS)
			key(f, more_keys[which % (sizeof more_keys / sizeof *more_keys)], v);
	}
}

static void
edit_tensor(File *f, unsigned which, unsigned what, unsigned with)
{
	static const uint32_t types[] = { F32,  F16, 30, Q4_0, 3,  6,  7,  Q8_0,
		                          Q4_K, 13,  14, 10,   16, 24, 26, 99 };
	Tensor *t = &f->tensor[which % (unsigned)f->n_tensor];
	unsigned a = with % 4, b = with / 4 % 4;
	uint64_t x;

	switch (what % 8) {
	case 0:
		t->type = types[with % (sizeof types / sizeof *types)];
		return;
	case 1: /* swap two axes */
		x = t->dim[a];
		t->dim[a] = t->dim[b];
		t->dim[b] = x;
		return;
	case 2:
		*t = f->tensor[--f->n_tensor];
		return;
	case 3:
		t->dim[a] = (uint64_t)numbers[with / 4 % 24];
		return;
	case 4: /* other dimensions with an equal number of elements */
		if (t->dim[a] % 2 == 0) {
			t->dim[a] /= 2;
			t->dim[b] *= 2;
		}
		return;
	case 5:
		t->n_dims = with % 6;
		return;
	case 6: /* rename to the tensor of another layer */
		if (strncmp(t->name, "blk.", 4) == 0)
			t->name[4] = (char)('0' + with % 10);
		return;
	default:
		if (f->n_tensor < MAX_TENSORS)
			f->tensor[f->n_tensor++] = *t,
			snprintf(f->tensor[f->n_tensor - 1].name, 64, "blk.%u.attn_kv_b.weight",
			         with % 4);
	}
}

/* ---- bytes ---- */

static void
put(Strbuf *out, uint64_t v, size_t n)
{
	strbuf_add(out, (const char *)&v, n);
}

static void
put_text(Strbuf *out, const char *s)
{
	put(out, strlen(s), 8);
	strbuf_puts(out, s);
}

static void
put_value(Strbuf *out, uint32_t type, double v, const char *text)
{
	static const size_t size[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
	float f = (float)v;

	if (type == 6)
		strbuf_add(out, (const char *)&f, 4);
	else if (type == 12)
		strbuf_add(out, (const char *)&v, 8);
	else if (type == 8)
		put_text(out, text ? text : "yarn");
	else if (type == 7)
		put(out, v != 0, 1);
	else if (type < 13)
		put(out,
		    v < 0      ? (uint64_t)-1
		    : v > 1e18 ? (uint64_t)1e18
		               : (uint64_t)v,
		    size[type]);
}

/* Writes the header. *end: the end of all tensor data whose size is known. */
static void
write_header(const File *f, Strbuf *out, uint64_t *end)
{
	uint64_t at = 0;

	strbuf_puts(out, "GGUF");
	put(out, 3, 4);
	put(out, (uint64_t)f->n_tensor, 8);
	put(out, (uint64_t)f->n_key + 1, 8);
	put_text(out, "general.architecture");
	put(out, 8, 4);
	put_text(out, f->arch);
	for (int i = 0; i < f->n_key; i++) {
		const Key *k = &f->key[i];
		put_text(out, k->name);
		put(out, k->count || k->type == 9 ? 9 : k->type, 4);
		if (k->count || k->type == 9) {
			uint32_t type = k->type == 9 ? 4 : k->type;
			put(out, type, 4);
			put(out, k->count, 8);
			for (uint64_t j = 0; j < k->count; j++)
				put_value(out, type, k->num, k->text);
		} else {
			put_value(out, k->type, k->num, k->text);
		}
	}
	for (int i = 0; i < f->n_tensor; i++) {
		const Tensor *t = &f->tensor[i];
		Dtype d = dtype_from_ggml(t->type);
		uint64_t n = 1, bytes;
		put_text(out, t->name);
		put(out, t->n_dims, 4);
		for (uint32_t k = 0; k < t->n_dims; k++) {
			put(out, t->dim[k & 3], 8);
			n = n > 1u << 24 || t->dim[k & 3] > 1u << 24 ? 1u << 24 : n * t->dim[k & 3];
		}
		put(out, t->type, 4);
		put(out, at, 8);
		bytes = d == DT_NONE ? n * 4
		                     : n / (uint64_t)dtype_info(d)->block_elems *
		                           (uint64_t)dtype_info(d)->block_bytes;
		at += (bytes + 31) / 32 * 32;
	}
	while (out->len % 32)
		strbuf_putc(out, 0);
	*end = out->len + at;
}

/* ---- steps of an import ---- */

static void
hear(void *user, int level, const char *line)
{
	(void)user, (void)level, (void)line;
}

static bool
small(const Plan *p)
{
	int64_t bytes = 0;

	for (int i = 0; i < p->n_tensor; i++)
		bytes += plan_tensor_bytes(&p->tensor[i]);
	return bytes >= 0 && bytes < MAX_FILE * 4;
}

static void
pack(const Plan *p, const char *path)
{
	WeightsOptions opt = { .path = path, .log = hear };
	llmc_error err = { 0 };
	Weights *w = NULL;

	if (!small(p))
		return;
	if (threads_open(1, &opt.threads, &err) != LLMC_OK)
		die("no threads", err.text);
	if (weights_load(p, &opt, &w, &err) != LLMC_OK && !*err.text)
		die("weights are refused without a word", path);
	if (w)
		weights_close(w);
	threads_close(opt.threads);
}

static bool
take(const char *path, bool tower, const char *target, Diag *d, Arena *perm, llmc_error *err)
{
	if (setjmp(perm->oom))
		return false;
	diag_init(d, perm);
	if (setjmp(d->bug))
		die("a fault", strbuf_str(&d->text));
	char *yaml = import_yaml(path, &(ImportOptions){ .tower = tower }, d, perm, err);
	if (!yaml && !d->n_error && !*err->text)
		die("refused without a word", path);
	if (!yaml)
		return false;
	Spec *s = spec_from_text("imported", yaml, strlen(yaml), NULL, d, perm);
	if (!s)
		die("import wrote what it cannot read", strbuf_str(&d->text));
	Compiled *c = s->n_layers < 100 ? compile_spec(s, target, NULL, NULL, d, perm) : NULL;
	if (!c)
		return false;
	if (plan_check(c->plan, err) != LLMC_OK)
		die("a compiled plan is refused", err->text);
	pack(c->plan, path);
	return true;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static File file;
	Strbuf head = { 0 };
	llmc_error err = { 0 };
	Arena perm;
	Diag d;
	uint64_t end;
	char path[64];

	if (size == 0)
		return 0;
	const unsigned kind = (data[0] < 192 ? data[0] : data[0] - 195u) % 8;
	switch (kind) {
	case 0:
		latent(&file, false, false);
		break;
	case 1:
		latent(&file, true, false);
		break;
	case 2:
		latent(&file, false, true);
		break;
	case 3:
		mixture(&file, false);
		break;
	case 4:
		mixture(&file, true);
		break;
	case 5:
		tower(&file, "qwen3vl_merger");
		break;
	case 6:
		tower(&file, "idefics3");
		break;
	case 7:
		tower(&file, "mlp");
		break;
	}
	for (size_t i = 0; i < MAX_EDITS && 1 + 4 * (i + 1) <= size; i++) {
		const uint8_t *e = data + 1 + 4 * i;
		unsigned with = e[2] | (unsigned)e[3] << 8;
		if (e[1] & 0x80)
			edit_key(&file, e[0], e[1], with);
		else
			edit_tensor(&file, e[0], e[1], with);
	}
	write_header(&file, &head, &end);
	int fd = memfd_create("fuzz.gguf", 0);
	if (fd < 0 || write(fd, head.data, head.len) != (ssize_t)head.len ||
	    ftruncate(fd, (off_t)(end < MAX_FILE ? end : MAX_FILE)) != 0)
		die("no file", "memfd");
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	arena_init(&perm);
	memset(&d, 0, sizeof d);
	bool taken = take(path, kind >= 5, data[0] < 192 ? "ref" : "cpu-v3", &d, &perm, &err);
	if (size == 1 && !taken)
		die("a sound file is refused", *err.text ? err.text : strbuf_str(&d.text));
	arena_release(&perm);
	strbuf_release(&head);
	close(fd);
	return 0;
}
