-- One exchange of one process with the shared counters, in one atomic step. `store.py` says what the numbers mean.
--
-- KEYS  1 epoch, 2 owner, 3 the counters it holds of, 4 its calls settled lately, 5... one counter for each limit
-- ARGV  1 JSON: owner; seq (text, absent when repeating is harmless); now (absent: the server's clock); grace_ms;
--       settled (request ids); limits; wishes (lists of {limit, rest, aside})
-- Reply now, epoch, ms until counters may be trusted, a verdict for each wish,
--       and for each limit: what others and the past count, mark, granted chunk, whether it is cold

local SET_BACK_MS = 60000
local NEVER = 9007199254740991
local DAY_MS = 86400000
local SETTLED_MS = 30000
local REFUSED, ADMITTED, COLD, EARLY = 0, 1, 2, 3

local given = cjson.decode(ARGV[1])
local owner = given.owner
local now = given.now
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

if given.seq then
  local last = redis.call('HMGET', KEYS[2], 'seq', 'reply')
  if last[1] == given.seq then
    return cmsgpack.unpack(last[2])
  end
end

local epoch = redis.call('GET', KEYS[1])
if not epoch then
  epoch = whole(now)
  redis.call('SET', KEYS[1], epoch)
end
epoch = tonumber(epoch)
local grace = math.max(epoch + given.grace_ms - now, 0)

local function drain(counter, at)
  if at >= counter.mark then
    counter.value = math.max(counter.value - counter.limit.most * (at - counter.mark), 0)
    counter.mark = at
  elseif counter.mark - at > SET_BACK_MS then
    counter.mark = at
  end
end

-- Counts what was used at a moment that may be before the last change: then as if used at that change, which is later
-- than it was, so the debt is never below the truth.
local function insert(counter, amount, at)
  drain(counter, math.max(counter.mark, at))
  counter.value = counter.value + amount
end

local function window_of(limit)
  if limit.window_ms then
    return now - now % limit.window_ms
  end
  local found = 0
  for _, start in ipairs(limit.starts) do
    if start <= now and start > found then
      found = start
    end
  end
  return found
end

local function load(key, limit)
  local field = redis.call('HMGET', key, 'value', 'mark', 'held', 'next', 'cold', 'a:' .. owner)
  local counter = {
    key = key,
    limit = limit,
    known = field[1] and true or false,
    value = tonumber(field[1] or 0),
    mark = tonumber(field[2] or 0),
    held = tonumber(field[3] or 0),
    next = tonumber(field[4] or NEVER),
    cold = field[5] == '1',
    mine = tonumber(field[6] or 0),
  }
  if limit.kind == 'usd' then
    local window = window_of(limit)
    if not counter.known or counter.mark < window then
      redis.call('DEL', key)
      counter.known, counter.cold, counter.value, counter.mark = false, true, 0, window
      counter.held, counter.next, counter.mine = 0, NEVER, 0
    end
  end
  return counter
end

-- Ends the holdings of owners that have not been heard of in time: slots come back, all else counts as used.
local function expire(counter)
  if now <= counter.next then
    return
  end
  local fields = redis.call('HGETALL', counter.key)
  local amounts, ends, gone = {}, {}, {}
  for at = 1, #fields, 2 do
    local what, who = string.sub(fields[at], 1, 2), string.sub(fields[at], 3)
    if what == 'a:' then
      amounts[who] = tonumber(fields[at + 1])
    elseif what == 'u:' then
      ends[who] = tonumber(fields[at + 1])
    end
  end
  counter.held, counter.next = 0, NEVER
  for who, amount in pairs(amounts) do
    if ends[who] < now then
      gone[#gone + 1] = who
    else
      counter.held = counter.held + amount
      counter.next = math.min(counter.next, ends[who])
    end
  end
  table.sort(gone, function(one, other)
    return ends[one] < ends[other]
  end)
  for _, who in ipairs(gone) do
    if counter.limit.kind == 'rate' then
      insert(counter, amounts[who], ends[who])
    elseif counter.limit.kind == 'usd' then
      counter.value = counter.value + amounts[who]
    end
    redis.call('HDEL', counter.key, 'a:' .. who, 'u:' .. who)
    if who == owner then
      counter.mine = 0
      redis.call('SREM', KEYS[3], counter.key)
    end
  end
end

local function report(counter)
  local limit = counter.limit
  -- Of a window that is over nothing counts any more.
  counter.stale = limit.kind == 'usd' and limit.window ~= nil and limit.window ~= counter.mark
  counter.hold = counter.stale and 0 or limit.hold
  counter.held = counter.held - counter.mine + counter.hold
  if limit.kind == 'rate' then
    if limit.add > 0 then
      insert(counter, limit.add, now - limit.age)
    end
    drain(counter, now)
    counter.value = math.max(counter.value - limit.back, 0)
  elseif not counter.stale then
    counter.value = counter.value + limit.add
  end
  if counter.cold and limit.seed and limit.seed_window == counter.mark then
    counter.value = counter.value + limit.seed
    counter.cold = false
  end
end

local counters = {}
for number, limit in ipairs(given.limits) do
  local counter = load(KEYS[4 + number], limit)
  expire(counter)
  report(counter)
  counters[number] = counter
end

local function need_of(counter, item)
  return item[2] + (counter.stale and item[3] or 0)
end

local function judge(wish)
  local verdict = ADMITTED
  for _, item in ipairs(wish) do
    local counter = counters[item[1]]
    local need = need_of(counter, item)
    if counter.cold then
      return COLD
    elseif need > 0 then
      if counter.value + counter.held + need > counter.limit.cap then
        verdict = REFUSED
      elseif grace > 0 and counter.limit.kind ~= 'rate' and verdict == ADMITTED then
        verdict = EARLY
      end
    end
  end
  return verdict
end

local reply = { now, epoch, grace }
for _, wish in ipairs(given.wishes) do
  local verdict = judge(wish)
  if verdict == ADMITTED then
    for _, item in ipairs(wish) do
      local counter = counters[item[1]]
      local need = need_of(counter, item)
      if counter.limit.kind == 'rate' then
        counter.value = counter.value + need
      else
        counter.held = counter.held + need
        counter.hold = counter.hold + need
      end
    end
  end
  reply[#reply + 1] = verdict
end

-- A lease of more than was asked for, only while plenty is left for everybody.
local function grant(counter)
  local chunk = counter.limit.chunk
  if chunk <= 0 or counter.cold or (grace > 0 and counter.limit.kind ~= 'rate') then
    return 0
  end
  if counter.value + counter.held + chunk > counter.limit.cap * 0.75 then
    return 0
  end
  counter.held = counter.held + chunk
  counter.hold = counter.hold + chunk
  return chunk
end

local function store(counter)
  local key, ends = counter.key, now + counter.limit.keep_ms
  if counter.hold > 0 then
    counter.next = math.min(counter.next, ends)
    redis.call('HSET', key, 'a:' .. owner, whole(counter.hold), 'u:' .. owner, whole(ends))
    if counter.mine == 0 then
      redis.call('SADD', KEYS[3], key)
      redis.call('PEXPIRE', KEYS[3], 40 * DAY_MS)
    end
  elseif counter.mine > 0 then
    redis.call('HDEL', key, 'a:' .. owner, 'u:' .. owner)
    redis.call('SREM', KEYS[3], key)
  end
  if counter.known or counter.value > 0 or counter.held > 0 or counter.limit.kind == 'usd' then
    redis.call('HSET', key, 'value', whole(counter.value), 'mark', whole(counter.mark),
      'held', whole(counter.held), 'next', whole(counter.next), 'cold', counter.cold and 1 or 0,
      'kind', counter.limit.kind, 'most', whole(counter.limit.most))
    redis.call('PEXPIRE', key, whole(counter.limit.ttl_ms))
  end
end

for _, counter in ipairs(counters) do
  local granted = grant(counter)
  store(counter)
  reply[#reply + 1] = counter.value + counter.held - counter.hold
  reply[#reply + 1] = counter.mark
  reply[#reply + 1] = granted
  reply[#reply + 1] = counter.cold and 1 or 0
end

if #given.settled > 0 then
  for _, request_id in ipairs(given.settled) do
    redis.call('ZADD', KEYS[4], whole(now), request_id)
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', whole(now - SETTLED_MS))
  redis.call('PEXPIRE', KEYS[4], DAY_MS)
end
if given.seq then
  redis.call('HSET', KEYS[2], 'seq', given.seq, 'reply', cmsgpack.pack(reply))
  redis.call('PEXPIRE', KEYS[2], DAY_MS)
end
return reply
