"""Triton kernels of a whole epoch for perceptrons with one hidden layer.

One program trains one critic of one run: its parameters stay in registers from the first Adam step of a fit to the
last, and a batch passes by in chunks of rows. A second kernel lets the actor of each run follow its critics, one after
the other. Sizes are padded to powers of two, at least 16, which is what tensor cores multiply; padding is zero and
stays so.

Shapes: R runs, C critics, K of them trained, N transitions per batch, I inputs, H hidden units, A actions, P
parameters. ``rates`` holds, for each run, the learning rates of critics and actor, alpha, the parameter of the rule.
An epoch may leave runs out: S of them take part, and ``members`` says which.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _product(a, b, PRECISION: tl.constexpr):
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _tanh(x):
    # exact to rounding for all x, and without overflow: 1 - 2 / (exp(2 |x|) + 1), with the sign of x
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    small = x * (1.0 - x * x * (1.0 / 3.0 - x * x * (2.0 / 15.0)))  # where 1 - e has lost its digits
    return tl.where(tl.abs(x) < 0.03, small, tl.where(x < 0, -t, t))


@triton.jit
def _inputs(observations, rows, valid, inputs, I: tl.constexpr, ONE_HOT: tl.constexpr):
    """Network inputs of some rows of the replay memory, (rows, padded inputs)."""
    if ONE_HOT:
        state = tl.load(observations + rows, mask=valid, other=-1)
        x = (state[:, None] == inputs[None, :]).to(tl.float32)
    else:
        exists = valid[:, None] & (inputs[None, :] < I)
        x = tl.load(observations + rows[:, None] * I + inputs[None, :], mask=exists, other=0.0)
    return x


@triton.jit
def _hidden(x, w1, b1, RELU: tl.constexpr, PRECISION: tl.constexpr):
    z = _product(x, w1, PRECISION) + b1[None, :]
    if RELU:
        h = tl.maximum(z, 0.0)
    else:
        h = _tanh(z)
    return h


@triton.jit
def _gradients(x, h, dy, w2, RELU: tl.constexpr, PRECISION: tl.constexpr):
    """Of w1, b1, w2 and b2, given the gradient of the outputs."""
    dw2 = _product(tl.trans(h), dy, PRECISION)
    dh = _product(dy, tl.trans(w2), PRECISION)
    if RELU:
        dz = tl.where(h > 0, dh, 0.0)
    else:
        dz = dh * (1.0 - h * h)
    return _product(tl.trans(x), dz, PRECISION), tl.sum(dz, axis=0), dw2, tl.sum(dy, axis=0)


# Adam's constants are PyTorch's: 0.9, 0.999, 1e-8; below, with the binary logarithms of the first two.
@triton.jit
def _adam(p, m, v, g, step_size, scale):
    m += (g - m) * (1.0 - 0.9)
    v = v * 0.999 + g * g * (1.0 - 0.999)
    return p - step_size * m / (tl.sqrt(v) / scale + 1e-8), m, v


@triton.jit
def _corrections(step, learning_rate):
    """Adam's step size and the scale of its second moment, after ``step`` steps; in double precision."""
    t = step.to(tl.float64)
    step_size = learning_rate / (1.0 - tl.exp2(t * -0.15200309344504995))
    return step_size.to(tl.float32), tl.sqrt(1.0 - tl.exp2(t * -0.0014434168696687174)).to(tl.float32)


@triton.jit
def _where_parameters(
    I: tl.constexpr, H: tl.constexpr, A: tl.constexpr, IP: tl.constexpr, HP: tl.constexpr, AP: tl.constexpr
):  # fmt: skip
    """Offsets of w1 (inputs x hidden), b1, w2 (hidden x outputs) and b2 in a flat vector, and which of them exist."""
    i, h, a = tl.arange(0, IP), tl.arange(0, HP), tl.arange(0, AP)
    w1 = h[None, :] * I + i[:, None]
    b1 = H * I + h
    w2 = H * I + H + a[None, :] * H + h[:, None]
    b2 = H * I + H + A * H + a
    return w1, b1, w2, b2, (i[:, None] < I) & (h[None, :] < H), h < H, (h[:, None] < H) & (a[None, :] < A), a < A


@triton.jit
def train_critics(
    parameters, first_moment, second_moment, steps, active,  # (R, C, 2, P), (R, C, 2), (R, C)
    observations, actions, rewards, discounts, next_observations, masks, next_masks,  # the memories, (R, M, ...)
    members, batches, critics, rates,  # (S,), (S, K, N), (S, K), (S, 4)
    targets, losses, means,  # out: (S, K, N, A), (S, K), (S, K)
    M, C, K,
    I: tl.constexpr, H: tl.constexpr, A: tl.constexpr, N: tl.constexpr,
    IP: tl.constexpr, HP: tl.constexpr, AP: tl.constexpr, ROWS: tl.constexpr,
    ITERATIONS: tl.constexpr, FIT: tl.constexpr,
    ONE_HOT: tl.constexpr, RELU: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: all training iterations of one critic of one run."""
    slot, k = tl.program_id(0) // K, tl.program_id(0) % K
    run = tl.load(members + slot)
    critic = run * C + tl.load(critics + slot * K + k)
    P: tl.constexpr = H * I + H + A * H + A
    first = tl.load(active + critic)
    learning_rate = tl.load(rates + slot * 4)
    alpha = tl.load(rates + slot * 4 + 2).to(tl.float32)
    width: tl.constexpr = 1 if ONE_HOT else I
    observations += run * M * width
    next_observations += run * M * width
    actions += run * M
    rewards += run * M
    discounts += run * M
    masks += run * M * A
    next_masks += run * M * A
    batches += (slot * K + k) * N
    targets += (slot * K + k) * N * A
    w1_at, b1_at, w2_at, b2_at, w1_is, b1_is, w2_is, b2_is = _where_parameters(I, H, A, IP, HP, AP)
    inputs, outputs = tl.arange(0, IP), tl.arange(0, AP)
    loss, total = 0.0, 0.0

    for iteration in range(ITERATIONS):
        mine = critic * 2 + (first + iteration) % 2
        a, b = parameters + mine * P, parameters + (critic * 2 + (first + iteration + 1) % 2) * P
        w1 = tl.load(a + w1_at, mask=w1_is, other=0.0)
        b1 = tl.load(a + b1_at, mask=b1_is, other=0.0)
        w2 = tl.load(a + w2_at, mask=w2_is, other=0.0)
        b2 = tl.load(a + b2_at, mask=b2_is, other=0.0)
        v1 = tl.load(b + w1_at, mask=w1_is, other=0.0)
        c1 = tl.load(b + b1_at, mask=b1_is, other=0.0)
        v2 = tl.load(b + w2_at, mask=w2_is, other=0.0)
        c2 = tl.load(b + b2_at, mask=b2_is, other=0.0)
        loss, total = 0.0, 0.0
        for start in range(0, N, ROWS):
            at = start + tl.arange(0, ROWS)
            valid = at < N
            rows = tl.load(batches + at, mask=valid, other=0)
            x = _inputs(next_observations, rows, valid, inputs, I, ONE_HOT)
            q_a = _product(_hidden(x, w1, b1, RELU, PRECISION), w2, PRECISION) + b2[None, :]
            q_b = _product(_hidden(x, v1, c1, RELU, PRECISION), v2, PRECISION) + c2[None, :]
            possible = (outputs[None, :] < A) & valid[:, None]
            if MASKED:
                at_mask = rows[:, None] * A + outputs[None, :]
                possible &= tl.load(next_masks + at_mask, mask=possible, other=0) != 0
            best = tl.argmax(tl.where(possible, q_a, float("-inf")), axis=1)
            chosen = outputs[None, :] == best[:, None]
            value = tl.sum(tl.where(chosen, tl.minimum(q_a, q_b), 0.0), axis=1)
            reward = tl.load(rewards + rows, mask=valid, other=0.0)
            goal = reward + tl.load(discounts + rows, mask=valid, other=0.0) * value

            x = _inputs(observations, rows, valid, inputs, I, ONE_HOT)
            q = _product(_hidden(x, w1, b1, RELU, PRECISION), w2, PRECISION) + b2[None, :]
            action = tl.load(actions + rows, mask=valid, other=0)
            taken = (outputs[None, :] == action[:, None]) & valid[:, None]
            change = tl.where(taken, alpha * (goal[:, None] - q), 0.0)
            exists = valid[:, None] & (outputs[None, :] < A)
            tl.store(targets + at[:, None] * A + outputs[None, :], q + change, mask=exists)
            loss += tl.sum(change * change)
            total += tl.sum(tl.where(exists, q, 0.0))
        tl.debug_barrier()

        m_at, v_at = first_moment + mine * P, second_moment + mine * P
        mw1 = tl.load(m_at + w1_at, mask=w1_is, other=0.0)
        mb1 = tl.load(m_at + b1_at, mask=b1_is, other=0.0)
        mw2 = tl.load(m_at + w2_at, mask=w2_is, other=0.0)
        mb2 = tl.load(m_at + b2_at, mask=b2_is, other=0.0)
        vw1 = tl.load(v_at + w1_at, mask=w1_is, other=0.0)
        vb1 = tl.load(v_at + b1_at, mask=b1_is, other=0.0)
        vw2 = tl.load(v_at + w2_at, mask=w2_is, other=0.0)
        vb2 = tl.load(v_at + b2_at, mask=b2_is, other=0.0)
        step = tl.load(steps + mine)
        for _ in range(FIT):
            gw1 = tl.zeros((IP, HP), tl.float32)
            gb1 = tl.zeros((HP,), tl.float32)
            gw2 = tl.zeros((HP, AP), tl.float32)
            gb2 = tl.zeros((AP,), tl.float32)
            for start in range(0, N, ROWS):
                at = start + tl.arange(0, ROWS)
                valid = at < N
                rows = tl.load(batches + at, mask=valid, other=0)
                x = _inputs(observations, rows, valid, inputs, I, ONE_HOT)
                h = _hidden(x, w1, b1, RELU, PRECISION)
                y = _product(h, w2, PRECISION) + b2[None, :]
                exists = valid[:, None] & (outputs[None, :] < A)
                wanted = tl.load(targets + at[:, None] * A + outputs[None, :], mask=exists, other=0.0)
                dy = tl.where(exists, (y - wanted) * (2.0 / (N * A)), 0.0)
                dw1, db1, dw2, db2 = _gradients(x, h, dy, w2, RELU, PRECISION)
                gw1 += dw1
                gb1 += db1
                gw2 += dw2
                gb2 += db2
            step += 1
            step_size, scale = _corrections(step, learning_rate)
            w1, mw1, vw1 = _adam(w1, mw1, vw1, gw1, step_size, scale)
            b1, mb1, vb1 = _adam(b1, mb1, vb1, gb1, step_size, scale)
            w2, mw2, vw2 = _adam(w2, mw2, vw2, gw2, step_size, scale)
            b2, mb2, vb2 = _adam(b2, mb2, vb2, gb2, step_size, scale)
        tl.store(a + w1_at, w1, mask=w1_is)
        tl.store(a + b1_at, b1, mask=b1_is)
        tl.store(a + w2_at, w2, mask=w2_is)
        tl.store(a + b2_at, b2, mask=b2_is)
        tl.store(m_at + w1_at, mw1, mask=w1_is)
        tl.store(m_at + b1_at, mb1, mask=b1_is)
        tl.store(m_at + w2_at, mw2, mask=w2_is)
        tl.store(m_at + b2_at, mb2, mask=b2_is)
        tl.store(v_at + w1_at, vw1, mask=w1_is)
        tl.store(v_at + b1_at, vb1, mask=b1_is)
        tl.store(v_at + w2_at, vw2, mask=w2_is)
        tl.store(v_at + b2_at, vb2, mask=b2_is)
        tl.store(steps + mine, step)
        tl.debug_barrier()  # the next iteration reads what other threads have written
    tl.store(active + critic, (first + ITERATIONS) % 2)
    tl.store(losses + slot * K + k, loss / (N * A))
    tl.store(means + slot * K + k, total / (N * A))


@triton.jit
def _softmax(scores, exists):
    scores = tl.where(exists, scores, float("-inf"))
    # rows that do not exist have no largest score
    e = tl.exp(scores - tl.maximum(tl.max(scores, axis=1), -1e30)[:, None])
    e = tl.where(exists, e, 0.0)
    return e / tl.maximum(tl.sum(e, axis=1), 1e-30)[:, None]


@triton.jit
def train_actor(
    parameters, first_moment, second_moment, steps,  # (R, P), (R,)
    observations, masks, members, batches, rates,  # as above
    q_values, targets, losses,  # (S, K, N, A), scratch (S, N, A), out (S, K)
    M, K,
    I: tl.constexpr, H: tl.constexpr, A: tl.constexpr, N: tl.constexpr,
    IP: tl.constexpr, HP: tl.constexpr, AP: tl.constexpr, ROWS: tl.constexpr,
    FIT: tl.constexpr,
    IMITATION: tl.constexpr, CROSS_ENTROPY: tl.constexpr,
    ONE_HOT: tl.constexpr, RELU: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: the actor of one run follows its critics, one after the other."""
    slot = tl.program_id(0)
    run = tl.load(members + slot)
    P: tl.constexpr = H * I + H + A * H + A
    width: tl.constexpr = 1 if ONE_HOT else I
    observations += run * M * width
    masks += run * M * A
    targets += slot * N * A
    learning_rate = tl.load(rates + slot * 4 + 1)
    rule_parameter = tl.load(rates + slot * 4 + 3).to(tl.float32)
    w1_at, b1_at, w2_at, b2_at, w1_is, b1_is, w2_is, b2_is = _where_parameters(I, H, A, IP, HP, AP)
    inputs, outputs = tl.arange(0, IP), tl.arange(0, AP)
    p_at, m_at, v_at = parameters + run * P, first_moment + run * P, second_moment + run * P
    w1 = tl.load(p_at + w1_at, mask=w1_is, other=0.0)
    b1 = tl.load(p_at + b1_at, mask=b1_is, other=0.0)
    w2 = tl.load(p_at + w2_at, mask=w2_is, other=0.0)
    b2 = tl.load(p_at + b2_at, mask=b2_is, other=0.0)
    mw1 = tl.load(m_at + w1_at, mask=w1_is, other=0.0)
    mb1 = tl.load(m_at + b1_at, mask=b1_is, other=0.0)
    mw2 = tl.load(m_at + w2_at, mask=w2_is, other=0.0)
    mb2 = tl.load(m_at + b2_at, mask=b2_is, other=0.0)
    vw1 = tl.load(v_at + w1_at, mask=w1_is, other=0.0)
    vb1 = tl.load(v_at + b1_at, mask=b1_is, other=0.0)
    vw2 = tl.load(v_at + w2_at, mask=w2_is, other=0.0)
    vb2 = tl.load(v_at + b2_at, mask=b2_is, other=0.0)
    step = tl.load(steps + run)

    for k in range(K):
        batch = batches + (slot * K + k) * N
        q_at = q_values + (slot * K + k) * N * A
        loss = 0.0
        for start in range(0, N, ROWS):
            at = start + tl.arange(0, ROWS)
            valid = at < N
            rows = tl.load(batch + at, mask=valid, other=0)
            exists = valid[:, None] & (outputs[None, :] < A)
            x = _inputs(observations, rows, valid, inputs, I, ONE_HOT)
            scores = _product(_hidden(x, w1, b1, RELU, PRECISION), w2, PRECISION) + b2[None, :]
            policy = _softmax(scores, exists)
            q = tl.load(q_at + at[:, None] * A + outputs[None, :], mask=exists, other=0.0)
            possible = exists
            if MASKED:
                possible &= tl.load(masks + rows[:, None] * A + outputs[None, :], mask=exists, other=0) != 0
            q = tl.where(possible, q, float("-inf"))
            greedy = (outputs[None, :] == tl.argmax(q, axis=1)[:, None]).to(tl.float32)
            if IMITATION:
                soft = _softmax(q / tl.maximum(rule_parameter, 1e-30), possible)
                wanted = tl.where(rule_parameter > 0, soft, greedy)
            else:
                wanted = (1.0 - rule_parameter) * policy + rule_parameter * greedy
            wanted = tl.where(exists, wanted, 0.0)
            tl.store(targets + at[:, None] * A + outputs[None, :], wanted, mask=exists)
            if CROSS_ENTROPY:
                loss -= tl.sum(tl.where(exists, wanted * tl.log(tl.maximum(policy, 1e-30)), 0.0)) / N
            else:
                error = tl.where(exists, policy - wanted, 0.0)
                loss += tl.sum(error * error) / (N * A)
        tl.store(losses + slot * K + k, loss)
        tl.debug_barrier()

        for _ in range(FIT):
            gw1 = tl.zeros((IP, HP), tl.float32)
            gb1 = tl.zeros((HP,), tl.float32)
            gw2 = tl.zeros((HP, AP), tl.float32)
            gb2 = tl.zeros((AP,), tl.float32)
            for start in range(0, N, ROWS):
                at = start + tl.arange(0, ROWS)
                valid = at < N
                rows = tl.load(batch + at, mask=valid, other=0)
                exists = valid[:, None] & (outputs[None, :] < A)
                x = _inputs(observations, rows, valid, inputs, I, ONE_HOT)
                h = _hidden(x, w1, b1, RELU, PRECISION)
                policy = _softmax(_product(h, w2, PRECISION) + b2[None, :], exists)
                wanted = tl.load(targets + at[:, None] * A + outputs[None, :], mask=exists, other=0.0)
                if CROSS_ENTROPY:
                    dy = (policy * tl.sum(wanted, axis=1)[:, None] - wanted) * (1.0 / N)
                else:
                    dp = (policy - wanted) * (2.0 / (N * A))
                    dy = policy * (dp - tl.sum(policy * dp, axis=1)[:, None])
                dy = tl.where(exists, dy, 0.0)
                dw1, db1, dw2, db2 = _gradients(x, h, dy, w2, RELU, PRECISION)
                gw1 += dw1
                gb1 += db1
                gw2 += dw2
                gb2 += db2
            step += 1
            step_size, scale = _corrections(step, learning_rate)
            w1, mw1, vw1 = _adam(w1, mw1, vw1, gw1, step_size, scale)
            b1, mb1, vb1 = _adam(b1, mb1, vb1, gb1, step_size, scale)
            w2, mw2, vw2 = _adam(w2, mw2, vw2, gw2, step_size, scale)
            b2, mb2, vb2 = _adam(b2, mb2, vb2, gb2, step_size, scale)
        tl.debug_barrier()  # the targets of the next critic take the place of these
    tl.store(p_at + w1_at, w1, mask=w1_is)
    tl.store(p_at + b1_at, b1, mask=b1_is)
    tl.store(p_at + w2_at, w2, mask=w2_is)
    tl.store(p_at + b2_at, b2, mask=b2_is)
    tl.store(m_at + w1_at, mw1, mask=w1_is)
    tl.store(m_at + b1_at, mb1, mask=b1_is)
    tl.store(m_at + w2_at, mw2, mask=w2_is)
    tl.store(m_at + b2_at, mb2, mask=b2_is)
    tl.store(v_at + w1_at, vw1, mask=w1_is)
    tl.store(v_at + b1_at, vb1, mask=b1_is)
    tl.store(v_at + w2_at, vw2, mask=w2_is)
    tl.store(v_at + b2_at, vb2, mask=b2_is)
    tl.store(steps + run, step)
