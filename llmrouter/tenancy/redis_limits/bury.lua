-- Ends all that a dead process held, in one atomic step; returns of how many counters it held something.
--
-- KEYS  1 owner, 2 the counters it holds of, 3 its calls settled lately
-- ARGV  1 JSON: owner, now (absent: the server's clock), billed: by counter key, lists of {request id, nano, window}

local given = cjson.decode(ARGV[1])
local now = given.now
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

local function billed(key, window)
  local total = 0
  for _, bill in ipairs(given.billed[key] or {}) do
    -- One that was settled already, just before its process died, counts by what it used.
    if bill[3] == window and not redis.call('ZSCORE', KEYS[3], bill[1]) then
      total = total + bill[2]
    end
  end
  return total
end

local found = 0
for _, key in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  local field = redis.call('HMGET', key, 'value', 'mark', 'held', 'kind', 'most', 'a:' .. given.owner)
  if field[6] then
    found = found + 1
    local value, mark, mine = tonumber(field[1]), tonumber(field[2]), tonumber(field[6])
    if field[4] == 'rate' then
      -- Nobody knows how much of it was used; as it drains, a lease is soon made good.
      value = math.max(value - tonumber(field[5]) * math.max(now - mark, 0), 0) + mine
      mark = math.max(mark, now)
    elseif field[4] == 'usd' then
      value = value + billed(key, mark)
    end
    redis.call('HSET', key, 'value', whole(value), 'mark', whole(mark), 'held', whole(tonumber(field[3]) - mine))
    redis.call('HDEL', key, 'a:' .. given.owner, 'u:' .. given.owner)
  end
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
return found
