-- requests.lua - wrk sends the requests of the file $REQUESTS in turn: PATH, a tab, anything, a tab, the body.
local requests, at = {}, 0
function init(args)
    for line in io.lines(os.getenv("REQUESTS")) do
        local path, body = line:match("^([^\t]*)\t[^\t]*\t(.*)$")
        requests[#requests + 1] = wrk.format("POST", path, {["Content-Type"] = "application/json", ["Host"] = wrk.headers["Host"]}, body)
    end
end
function request()
    at = at % #requests + 1
    return requests[at]
end
