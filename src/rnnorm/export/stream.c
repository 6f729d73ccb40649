A stream in C, in pieces that c_source.py puts together. A piece begins with its name behind "//:".
A name behind a dollar sign is filled in; a line of such a name alone is left out where it is empty.

//: header
/* Written by rnnorm.export.c: see $name.c. */
#ifndef ${name}_H
#define ${name}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ${NAME}_INPUTS = $inputs, ${NAME}_OUTPUTS = $outputs };

/* what a stream remembers from frame to frame; each stream has its own */
typedef struct {
    $members
} ${name}_state;

/* call this before the first frame of a sequence */
void ${name}_reset(${name}_state *state);

/* reads a frame of ${NAME}_INPUTS finite values, and writes ${NAME}_OUTPUTS values */
void ${name}_frame(${name}_state *state, const float *input, float *output);

#ifdef __cplusplus
}
#endif

#endif

//: source
$comment

#include "$name.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { LAYERS = $layers, UNITS = $units, WIDTH = $gates * UNITS };

$structs

$constants

$functions

void ${name}_reset(${name}_state *state)
{
    for (int k = 0; k < LAYERS; ++k)
        for (int i = 0; i < UNITS; ++i) {
            $reset
        }
    $young
}

void ${name}_frame(${name}_state *state, const float *input, float *output)
{
    const float *x = input;
    for (int k = 0; k < LAYERS; ++k) {
        step(&layers[k], x, $states);
        x = state->h[k];
    }
    $older
    $output
}

//: float matrix
typedef struct {
    const float *weight; /* rows by columns */
    const float *bias;   /* NULL for none */
    int rows, columns;
} Matrix;

//: int8 matrix
typedef struct {
    const int8_t *weight; /* rows by columns */
    const float *scale;   /* of each row */
    const float *bias;    /* NULL for none */
    int rows, columns;
} Matrix;

//: steps
/* batch norm: a factor and a shift for each step; the last are those of all later steps, too */
typedef struct {
    const float *scale, *shift;
    uint32_t steps;
} Steps;

//: row_norm
/* a norm by the statistics of the values themselves */
typedef struct {
    const float *gamma;
    const float *beta; /* NULL for none */
    float eps;
} RowNorm;

//: float product
/* z = W x + b */
static void product(float *z, const Matrix *matrix, const float *x)
{
    const float *weight = matrix->weight;
    for (int i = 0; i < matrix->rows; ++i, weight += matrix->columns) {
        float sum = 0.0f;
        for (int k = 0; k < matrix->columns; ++k)
            sum += weight[k] * x[k];
        z[i] = sum + (matrix->bias ? matrix->bias[i] : 0.0f);
    }
}

//: int8 product
/* z = W x + b, where x is rounded to 255 levels, from minus to plus its largest absolute value */
static void product(float *z, const Matrix *matrix, const float *x)
{
    int8_t q[$widest] = {0};
    float largest = 0.0f;
    for (int k = 0; k < matrix->columns; ++k)
        largest = fabsf(x[k]) > largest ? fabsf(x[k]) : largest;
    /* of smaller values the inverse may be infinite */
    const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
    for (int k = 0; k < matrix->columns; ++k)
        q[k] = (int8_t)lrintf(x[k] * inverse);

    const int8_t *weight = matrix->weight;
    for (int i = 0; i < matrix->rows; ++i, weight += matrix->columns) {
        int32_t sum = 0;
        for (int k = 0; k < matrix->columns; ++k)
            sum += weight[k] * q[k];
        z[i] = (float)sum * (matrix->scale[i] * largest / 127.0f)
            + (matrix->bias ? matrix->bias[i] : 0.0f);
    }
}

//: scale_and_shift
static void scale_and_shift(float *z, const Steps *site, uint32_t age, int count)
{
    const size_t step = age < site->steps ? age : site->steps - 1;
    const float *scale = site->scale + step * (size_t)count;
    const float *shift = site->shift + step * (size_t)count;
    for (int k = 0; k < count; ++k)
        z[k] = z[k] * scale[k] + shift[k];
}

//: layer_norm
static void layer_norm(float *z, const RowNorm *norm, int first, int end)
{
    const float count = (float)(end - first);
    float mean = 0.0f, var = 0.0f;
    for (int k = first; k < end; ++k)
        mean += z[k];
    mean /= count;
    for (int k = first; k < end; ++k)
        var += (z[k] - mean) * (z[k] - mean);
    const float scale = 1.0f / sqrtf(var / count + norm->eps);
    for (int k = first; k < end; ++k)
        z[k] = (z[k] - mean) * scale * norm->gamma[k] + (norm->beta ? norm->beta[k] : 0.0f);
}

//: rms_norm
static void rms_norm(float *z, const RowNorm *norm, int first, int end)
{
    float square = 0.0f;
    for (int k = first; k < end; ++k)
        square += z[k] * z[k];
    const float scale = 1.0f / sqrtf(square / (float)(end - first) + norm->eps);
    for (int k = first; k < end; ++k)
        z[k] = z[k] * scale * norm->gamma[k] + (norm->beta ? norm->beta[k] : 0.0f);
}

//: sigmoid
static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

//: RNN
/* h = phi(W_x x + W_h h + b) */
static void step(const Layer *layer, const float *x, float *h$age)
{
    float z[WIDTH], term[WIDTH];
    product(z, &layer->ih, x);
    $input
    product(term, &layer->hh, h);
    $recurrent
    for (int k = 0; k < WIDTH; ++k)
        z[k] += term[k];
    $joint
    for (int k = 0; k < UNITS; ++k)
        h[k] = $nonlinearity;
}

//: GRU
/* n = tanh(W_in x + b_in + r (W_hn h + b_hn)); h = (1 - u) n + u h */
static void step(const Layer *layer, const float *x, float *h$age)
{
    float z[WIDTH], term[WIDTH];
    product(z, &layer->ih, x);
    $input
    product(term, &layer->hh, h);
    $recurrent
    for (int k = 0; k < UNITS; ++k) {
        const float r = sigmoid(z[k] + term[k]);
        const float u = sigmoid(z[UNITS + k] + term[UNITS + k]);
        const float n = tanhf(z[2 * UNITS + k] + r * term[2 * UNITS + k]);
        h[k] = n + u * (h[k] - n);
    }
}

//: LSTM
/* i, f, g, o = W_x x + W_h h + b; c = f c + i tanh(g); h = o tanh(c) */
static void step(const Layer *layer, const float *x, float *h, float *c$age)
{
    float z[WIDTH], term[WIDTH];
    product(z, &layer->ih, x);
    $input
    product(term, &layer->hh, h);
    $recurrent
    for (int k = 0; k < WIDTH; ++k)
        z[k] += term[k];
    $joint
    for (int k = 0; k < UNITS; ++k)
        c[k] = sigmoid(z[UNITS + k]) * c[k] + sigmoid(z[k]) * tanhf(z[2 * UNITS + k]);
    $carry
    for (int k = 0; k < UNITS; ++k)
        term[k] = c[k];
    $cell
    for (int k = 0; k < UNITS; ++k)
        h[k] = sigmoid(z[3 * UNITS + k]) * tanhf(term[k]);
}
