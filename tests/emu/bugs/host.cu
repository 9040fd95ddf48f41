// Kernels for the programs in t_host.c
struct Args { float *a, *b, *c; int n; unsigned *u; };

extern "C" __global__ void __launch_bounds__(256)
make(Args a) // b
{
	a.b[threadIdx.x] = a.a[threadIdx.x] + 1;
}

extern "C" __global__ void
use(Args a) // c from b
{
	a.c[threadIdx.x] = a.b[threadIdx.x];
}

extern "C" __global__ void
look(Args a) // c[n..] from b
{
	a.c[a.n + threadIdx.x] = a.b[threadIdx.x];
}

extern "C" __global__ void
dynamic(Args a)
{
	SHARED_BYTES(s);
	s[threadIdx.x] = 1;
	a.c[threadIdx.x] = s[threadIdx.x];
}

extern "C" __global__ void
pair(float *x, float *y)
{
	y[threadIdx.x] = x[threadIdx.x];
}
