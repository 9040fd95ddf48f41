#include "compiler/cost_model.h"

#include <ctype.h>
#include <string.h>

/* Shares of peak that good kernels reach. Memory-bound kernels read at 90-97 % of the data sheet's
 * bandwidth; large GEMMs run at 70-80 % of peak. */
static const double READ_SHARE = 0.90, MMA_SHARE = 0.75;

typedef enum LinkName {
#define LINK(name, title, bandwidth, latency, source) LINK_##name,
#include "compiler/link.def"
#undef LINK
} LinkName;

static const LinkInfo links[] = {
#define LINK(name, title, bandwidth, latency, source)                                              \
	{ #name, title, (bandwidth) * 1e9, (latency) * 1e-6, source },
#include "compiler/link.def"
#undef LINK
};
const LinkInfo *const gpu_network = &links[LINK_ndr];

static const Gpu table[] = {
#define GPU(name, title, target, sms, memory, bandwidth, peak, l2, launch, link, source)           \
	{ #name,                                                                                   \
	  title,                                                                                   \
	  target,                                                                                  \
	  sms,                                                                                     \
	  memory,                                                                                  \
	  (int64_t)(l2) << 20,                                                                     \
	  (bandwidth) * 1e9,                                                                       \
	  (peak) * 1e12,                                                                           \
	  (launch) * 1e-6,                                                                         \
	  &links[LINK_##link],                                                                     \
	  source },
#include "compiler/gpu.def"
#undef GPU
};

const Gpu *
gpu_at(int i)
{
	return i >= 0 && i < (int)(sizeof table / sizeof *table) ? &table[i] : NULL;
}

int64_t
gpu_largest_l2(const char *target)
{
	int64_t most = 0;

	for (int i = 0; gpu_at(i); i++)
		if (strcmp(table[i].target, target) == 0 && table[i].l2_bytes > most)
			most = table[i].l2_bytes;
	return most;
}

/* Copy the next word of a name in lower case; false: the name has ended. */
static bool
next_word(const char **at, char word[16])
{
	size_t n = 0;

	while (**at && !isalnum((unsigned char)**at))
		(*at)++;
	while (isalnum((unsigned char)**at)) {
		if (n + 1 < 16)
			word[n++] = (char)tolower((unsigned char)**at);
		(*at)++;
	}
	word[n] = 0;
	return n > 0;
}

static bool
is_one_of(const char *word, const char *const *list)
{
	while (*list && strcmp(*list, word))
		list++;
	return *list != NULL;
}

/* Match a device name as its driver reports it: "NVIDIA H100 80GB HBM3" is h100, "NVIDIA GeForce
 * RTX 4090" is rtx4090, "NVIDIA RTX PRO 6000 Blackwell Server Edition" is rtx-pro-6000. If the name
 * has an unknown word, it is another device: 4090 Laptop GPU, 3090 Ti, H100 PCIe,
 * A100-SXM4-40GB. */
static bool
is_called(const Gpu *g, const char *name)
{
	static const char *const maker[] = { "nvidia", "geforce", "tesla", "rtx",
		                             "jetson", "agx",     NULL };
	static const char *const variant[] = { "sxm",    "sxm4",    "sxm5",      "sxm6",
		                               "ac",     "80gb",    "141gb",     "180gb",
		                               "hbm3",   "hbm3e",   "nvgpu",     "workstation",
		                               "server", "edition", "blackwell", NULL };
	const char *model = strncmp(g->name, "rtx", 3) ? g->name : g->name + 3;
	char word[16], part[16];
	bool found = false, rtx = false;

	next_word(&model, part);
	while (next_word(&name, word)) {
		rtx |= !strcmp(word, "rtx");
		if (!found && !strcmp(word, g->name))
			found = true;
		else if (!found && !strcmp(word, part) && (rtx || strncmp(g->name, "rtx", 3)))
			found = !next_word(&model, part);
		else if (!is_one_of(word, found ? variant : maker))
			return false;
	}
	return found;
}

const Gpu *
gpu_find(const char *name)
{
	for (int i = 0; gpu_at(i); i++)
		if (is_called(&table[i], name))
			return &table[i];
	return NULL;
}

/* Add the bytes of the cache that a step reads, for all sequences, and the operations on these, for
 * all rows. */
static void
add_attention(const Plan *p, const PlanStep *s, int phase, int64_t rows, int64_t context,
              int64_t *bytes, int64_t *flops)
{
	int64_t position, ops, window = plan_step_reach(s);

	if (!plan_step_cache(p, s, &position, &ops))
		return;
	int64_t seen = window > 0 && window < context ? window : context;
	/* in prefill, a row attends to half of its chunk on average */
	int64_t pairs = phase == 0
	                    ? rows * seen
	                    : rows * (window > 0 && window < context ? seen : context - rows / 2);
	*bytes += position * seen * (phase == 0 ? rows : 1);
	*flops += ops * pairs;
}

/* Return whether the argument is 16-bit scratch that only a library GEMM uses. */
static bool
library_only(const Plan *p, const PlanStep *s, int arg)
{
	const PlanGemm *m = s->kernel >= 0 ? plan_library_gemm(&p->kernel[s->kernel]) : NULL;

	return m && m->y == arg && strcmp(p->kernel[s->kernel].arg[arg].type, "f32") != 0;
}

static int64_t
activation_bytes(const Plan *p, const PlanStep *s, int64_t rows)
{
	int64_t n = 0;

	for (int i = 0; i < s->n_arg; i++) {
		if (s->arg[i].kind != REF_BUFFER)
			continue;
		const PlanBuffer *b = &p->buffer[s->arg[i].index];
		if (b->extent.sym == SYM_n_tok && !library_only(p, s, i))
			n += b->extent.mul * dtype_info(b->dtype)->block_bytes * rows;
	}
	return n;
}

/* Count the launches of llmc's own kernels. Only on the target machine is it known whether a
 * library is present and faster. */
static int
own_launches(const PlanKernel *k, int64_t rows, int64_t wanted)
{
	const int64_t sym[SYM_COUNT] = { [SYM_one] = 1, [SYM_n_tok] = rows, [SYM_n_out] = wanted };
	int n = 0;

	for (int i = 0; i < k->n_launch; i++)
		n += k->launch[i].path != PATH_LIBRARY && plan_launch_runs(&k->launch[i], sym);
	return n ? n : 1;
}

/* Return the bytes that a communication op reduces or gathers on a rank; 0 for other ops. */
static int64_t
between_bytes(const Plan *p, const PlanStep *s, int64_t rows)
{
	int64_t first, own;

	if (s->op == OP_all_reduce)
		return 4 * rows * step_int(s, "width");
	if (s->op == OP_stage_in)
		return 4 * rows * step_int(s, "hidden");
	if (s->op == OP_send || s->op == OP_recv)
		return 4 * rows * step_int(s, "width");
	if (s->op != OP_all_gather)
		return 0;
	op_share(step_int(s, "width"), step_int(s, "unit"), p->ranks, p->rank, &first, &own);
	return 4 * rows * own;
}

static double
between_seconds(const Plan *p, const PlanStep *s, const Gpu *gpu, int64_t bytes)
{
	const double n = p->ranks, inner = n < GPU_HOST ? n : GPU_HOST,
	             hosts = (p->ranks + GPU_HOST - 1) / GPU_HOST;
	const double turns = s->op == OP_all_reduce ? 2 : 1,
	             b = s->op == OP_all_gather ? (double)bytes * n : (double)bytes;

	if (s->op == OP_send || s->op == OP_recv)
		return CROSSING_S + (double)bytes / gpu_host_link(gpu)->bandwidth;
	if (s->op == OP_stage_in) {
		const LinkInfo *l = p->ranks * p->stages > GPU_HOST ? gpu_network : gpu->link;
		return l->latency_s + (double)bytes / l->bandwidth;
	}
	double t = gpu->link->latency_s + turns * (inner - 1) / inner * b / gpu->link->bandwidth;
	if (hosts > 1)
		t += gpu_network->latency_s +
		     turns * (hosts - 1) / hosts * b / inner / gpu_network->bandwidth;
	return t;
}

double
gpu_read_bandwidth(const Gpu *g)
{
	return (g ? g : gpu_find("rtx4090"))->bandwidth * READ_SHARE;
}

const LinkInfo *
gpu_host_link(const Gpu *g)
{
	const LinkInfo *link = (g ? g : gpu_find("rtx4090"))->link;

	/* GPUs that are connected by NVLink reach the host over PCIe */
	return strncmp(link->name, "nvlink", 6) ? link
	       : link == &links[LINK_nvlink3]   ? &links[LINK_pcie4]
	                                        : &links[LINK_pcie5];
}

int64_t
predict_host_bytes(const Plan *p, int64_t rows, int64_t context)
{
	int64_t bytes = 0, flops = 0;

	for (int i = 0; i < p->phase[0].n_step; i++) {
		bytes += plan_step_weights(p, &p->phase[0].step[i], rows);
		add_attention(p, &p->phase[0].step[i], 0, rows, context, &bytes, &flops);
	}
	return bytes;
}

Prediction
predict(const Plan *p, const Gpu *gpu, int phase, int64_t rows, int64_t context)
{
	Prediction r = {
		.launches = phase == 0 ? 2 : 0
	}; /* the first and the last kernel of a decode step: begin and sampling */
	const PlanPhase *ph = &p->phase[phase];

	for (int i = 0; i < ph->n_step; i++) {
		const PlanStep *s = &ph->step[i];
		/* gather ops process only rows with an output; in prefill that is the last row */
		int64_t n = op_info[s->op].flags & OPF_GATHER && phase == 1 ? 1 : rows;
		int64_t between = between_bytes(p, s, s->op == OP_all_gather && phase == 1 ? 1 : n);
		if (between) {
			r.sums++;
			r.sum_bytes += between;
			r.link_s += between_seconds(p, s, gpu, between);
			continue;
		}
		int64_t bytes = plan_step_weights(p, s, rows) + activation_bytes(p, s, rows),
		        flops = s->flops_per_row * n;
		add_attention(p, s, phase, rows, context, &bytes, &flops);
		double by_bytes = (double)bytes / (gpu->bandwidth * READ_SHARE);
		double by_flops = (double)flops / (gpu->peak * MMA_SHARE);
		*(by_bytes >= by_flops ? &r.bytes_s : &r.flops_s) +=
		    by_bytes >= by_flops ? by_bytes : by_flops;
		r.bytes += bytes;
		r.flops += flops;
		r.launches += s->kernel >= 0
		                  ? own_launches(&p->kernel[s->kernel], rows, phase == 1 ? 1 : rows)
		                  : 1;
	}
	r.launch_s = r.launches * gpu->launch_s;
	r.seconds = r.bytes_s + r.flops_s + r.launch_s + r.link_s;
	return r;
}
