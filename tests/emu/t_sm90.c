/* Tiles of tensor maps, warpgroup matrix instructions, bulk stores (t_sm90.cu), and the libraries that stand in for NVIDIA's. */
#include "host.h"

typedef struct { _Alignas(64) unsigned char map[4][128]; CUdeviceptr c, a, u; int n; } Args;
static unsigned short h[64 * 64 + 128 * 64];
static float c[64 * 128];
static const unsigned ones[5] = { 1, 1, 1, 1, 1 };

static float
bf(unsigned short x)
{
	unsigned u = (unsigned)x << 16;
	float f;
	memcpy(&f, &u, 4);
	return f;
}

static CUresult
encode(void *map, int type, unsigned rank, CUdeviceptr p, const uint64_t *dim, const uint64_t *stride, const unsigned *box, int swizzle)
{
	return CU(cuTensorMapEncodeTiled, void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const unsigned *, const unsigned *, int, int, int, int)(
	        map, type, rank, (void *)(uintptr_t)p, dim, stride, box, ones, 0, swizzle, 0, 0);
}

static void
products(CUmodule m, Args *p)
{
	static const char *const name[] = { "tiles32", "tiles64", "tiles128" };
	uint64_t da[] = { 64, 64 }, db[] = { 64, 128 }, stride[] = { 128 };

	for (int i = 0; i < 64 * 192; i++)
		h[i] = (unsigned short)(0x3f80 + (i * 37 % 61) - (i % 3 ? 0 : 0x8000));
	OK(up(p->a, h, sizeof h));
	for (int s = 0; s < 3; s++) {
		unsigned ba[] = { 16u << s, 64 }, bb[] = { 16u << s, 128 };
		OK(encode(p->map[0], 9, 2, p->a, da, stride, ba, s + 1));
		OK(encode(p->map[1], 9, 2, p->a + 64 * 128, db, stride, bb, s + 1));
		OK(launch(function(m, name[s]), 1, 128, 24576, NULL, 0, p));
		OK(down(c, p->c, sizeof c));
		for (int i = 0; i < 64; i++)
			for (int j = 0; j < 128; j++) {
				float want = 0;
				for (int k = 0; k < 64; k++)
					want += bf(h[i * 64 + k]) * bf(h[4096 + j * 64 + k]);
				CHECK(c[i * 128 + j] == want);
			}
	}
	for (int s = 0; s < 2; s++) {
		OK(launch(function(m, s ? "rows0" : "rows128"), 1, 128, 4096, NULL, 0, p));
		OK(down(c, p->c, 64 * 64 * 4));
		for (int i = 0; i < 64; i++)
			for (int j = 0; j < 64; j++) {
				float want = 1;
				for (int k = 0; k < 32; k++)
					want += bf(h[i * 32 + k]) * bf(h[2048 + k * 64 + j]);
				CHECK(c[i * 64 + j] == want);
			}
	}
	for (int i = 0; i < 1536; i++)
		h[i] = (unsigned short)((16 + i * 7 % 3) << 10); /* powers of two */
	OK(up(p->a, h, sizeof h));
	OK(launch(function(m, "roles"), 1, 256, 3072 + 8192, NULL, 0, p));
	OK(down(c, p->c, 64 * 32 * 4));
	for (int i = 0; i < 64; i++)
		for (int j = 0; j < 32; j++) {
			float want = 0;
			for (int k = 0; k < 16; k++)
				want += (float)(2 << (i * 16 + k) * 7 % 3) * (float)(2 << (1024 + j * 16 + k) * 7 % 3);
			CHECK(c[i * 32 + j] == want);
		}
}

static void
boxes(CUmodule m, Args *p)
{
	uint64_t dim[] = { 6, 5, 3 }, stride[] = { 32, 160 };
	unsigned box[] = { 4, 4, 2 }, odd[] = { 3, 4, 2 }, wide[] = { 64, 4, 2 };
	float in[120], out[120], zero[120] = { 0 };

	for (int i = 0; i < 120; i++)
		in[i] = (float)i + 1;
	OK(up(p->a, in, sizeof in));
	OK(up(p->c, zero, sizeof zero));
	OK(encode(p->map[2], 7, 3, p->a, dim, stride, box, 0));
	OK(encode(p->map[3], 7, 3, p->c, dim, stride, box, 0));
	CHECK(encode(p->map[0], 7, 3, p->c + 4, dim, stride, box, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(encode(p->map[0], 7, 3, p->c, dim, stride, odd, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(encode(p->map[0], 7, 3, p->c, dim, stride, wide, 3) == CUDA_ERROR_INVALID_VALUE);
	OK(launch(function(m, "boxes"), 1, 32, 128, NULL, 0, p));
	OK(down(out, p->c, sizeof out));
	for (int z = 0; z < 3; z++)
		for (int y = 0; y < 5; y++)
			for (int x = 0; x < 8; x++) {
				float want = 0;
				if (z >= 1 && x < 4 && y < 4 && x >= 1 && y < 3)
					want = in[(z - 1) * 40 + (y + 2) * 8 + x - 1];
				CHECK(out[z * 40 + y * 8 + x] == want);
			}
}

int
main(void)
{
	libs_open();
	device_open();
	CUmodule m = module("tests/emu/t_sm90.cu", NULL);
	Args p = { .c = device(sizeof c), .a = device(sizeof h), .u = device(4096) };
	products(m, &p);
	boxes(m, &p);
	return failures != 0;
}
