/* Routed experts of one layer by ggml, as llama.cpp's graphs have them (build_moe_ffn):
 *
 *     experts_peer HIDDEN WIDTH EXPERTS TOP_K THREADS REPACK RUNS ROWS...
 *
 * Weights are Q4_K of two layers, used in turn, in the buffer for repacked weights or the plain one.
 * Experts are drawn evenly, once per layer, since llmc times its ops repeatedly on one step. Prints
 * wall and CPU seconds of every run, one line per number of rows. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

static double
now(clockid_t clock)
{
	timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ggml_backend_buffer_type_t
repacked()
{
	ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
	auto extra = (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
	    ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts");

	for (ggml_backend_buffer_type_t *b = extra ? extra(cpu) : nullptr; b && *b; b++)
		if (strcmp(ggml_backend_buft_name(*b), "CPU_REPACK") == 0)
			return *b;
	return nullptr;
}

struct Layer {
	ggml_tensor *gate, *up, *down;
};

static ggml_tensor *
matrices(ggml_context *c, long cols, long rows, long n)
{
	return ggml_new_tensor_3d(c, GGML_TYPE_Q4_K, cols, rows, n);
}

static void
fill(ggml_tensor *t)
{
	const size_t n = (size_t)(t->ne[0] * t->ne[1]);
	std::vector<float> x(n);
	std::vector<char> q(ggml_nbytes(t));

	for (float &v : x)
		v = ((float)rand() / (float)RAND_MAX - 0.5f) * 0.05f;
	ggml_quantize_chunk(GGML_TYPE_Q4_K, x.data(), q.data(), 0, t->ne[1], t->ne[0], nullptr);
	for (long e = 1; e < t->ne[2]; e++)
		memcpy(q.data() + (size_t)e * t->nb[2], q.data(), t->nb[2]);
	ggml_backend_tensor_set(t, q.data(), 0, q.size());
}

int
main(int argc, char **argv)
{
	if (argc < 9)
		return 2;
	const long hidden = atol(argv[1]), width = atol(argv[2]), n = atol(argv[3]),
	           top = atol(argv[4]);
	const int threads = atoi(argv[5]), runs = atoi(argv[7]);
	ggml_backend_t backend = ggml_backend_cpu_init();
	ggml_backend_buffer_type_t type = atoi(argv[6]) ? repacked() : ggml_backend_cpu_buffer_type();
	ggml_init_params p = { ggml_tensor_overhead() * 16, nullptr, true };
	ggml_context *w = ggml_init(p);
	Layer layer[2];

	if (!type)
		return 3;
	ggml_backend_cpu_set_n_threads(backend, threads);
	for (Layer &l : layer)
		l = { matrices(w, hidden, width, n), matrices(w, hidden, width, n),
		      matrices(w, width, hidden, n) };
	if (!ggml_backend_alloc_ctx_tensors_from_buft(w, type))
		return 4;
	for (Layer &l : layer)
		fill(l.gate), fill(l.up), fill(l.down);
	for (int a = 8; a < argc; a++) {
		const long rows = atol(argv[a]);
		printf("%ld", rows);
		for (int run = -1; run < runs; run++) {
			const Layer &l = layer[run & 1];
			ggml_init_params q = { ggml_tensor_overhead() * 64 + ggml_graph_overhead(),
				               nullptr, true };
			ggml_context *c = ggml_init(q);
			ggml_tensor *x = ggml_new_tensor_3d(c, GGML_TYPE_F32, hidden, 1, rows),
			            *ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, top, rows),
			            *share = ggml_new_tensor_3d(c, GGML_TYPE_F32, 1, top, rows);
			ggml_tensor *y = ggml_mul_mat_id(
			    c, l.down,
			    ggml_swiglu_split(c, ggml_mul_mat_id(c, l.gate, x, ids),
			                      ggml_mul_mat_id(c, l.up, x, ids)),
			    ids);
			y = ggml_mul(c, y, share);
			ggml_tensor *sum = nullptr;
			for (long k = 0; k < top; k++) {
				ggml_tensor *one = ggml_view_2d(c, y, hidden, rows, y->nb[2],
				                                (size_t)k * y->nb[1]);
				sum = sum ? ggml_add(c, sum, one) : one;
			}
			ggml_cgraph *g = ggml_new_graph(c);
			ggml_build_forward_expand(g, sum);
			ggml_backend_buffer_t b = ggml_backend_alloc_ctx_tensors(c, backend);
			std::vector<float> fx((size_t)(hidden * rows), 0.25f),
			    fs((size_t)(top * rows), 0.125f);
			std::vector<int> fi((size_t)(top * rows));
			srand((unsigned)(run & 1));
			for (long t = 0; t < rows; t++)
				for (long k = 0; k < top; k++) {
					int &id = fi[(size_t)(t * top + k)];
					bool again = true;
					while (again) {
						id = (int)(rand() % n);
						again = false;
						for (long o = 0; o < k; o++)
							again |= fi[(size_t)(t * top + o)] == id;
					}
				}
			for (size_t i = 0; i < fx.size(); i++)
				fx[i] = (float)rand() / (float)RAND_MAX - 0.5f;
			ggml_backend_tensor_set(x, fx.data(), 0, fx.size() * 4);
			ggml_backend_tensor_set(ids, fi.data(), 0, fi.size() * 4);
			ggml_backend_tensor_set(share, fs.data(), 0, fs.size() * 4);
			const double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
			if (ggml_backend_graph_compute(backend, g) != GGML_STATUS_SUCCESS)
				return 5;
			if (run >= 0)
				printf(" %.9f/%.9f", now(CLOCK_MONOTONIC) - wall,
				       now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
			ggml_backend_buffer_free(b);
			ggml_free(c);
		}
		printf("\n");
		fflush(stdout);
	}
	return 0;
}
